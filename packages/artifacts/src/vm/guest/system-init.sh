#!/cloche-vm/bin/sh
# Process 1 of a virtual machine, on its read-only system image: mounts the file systems that Linux programs expect, sets up the
# network (with equal addresses in every machine, so that a clone needs no change) and runs the agent. A machine without its
# agent is useless: when the agent ends, the machine powers off and the host reports it.
PATH=/cloche-vm/bin
export PATH
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o nosuid,noexec,gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=0755 tmpfs /run
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /tmp
mount -t tmpfs -o nodev,mode=0755 tmpfs /mnt
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
echo /cloche-vm/bin/modprobe > /proc/sys/kernel/modprobe
echo 1048576 > /proc/sys/fs/nr_open
# Write data to the disk image within seconds, so that a kill loses less and a checkpoint has less to flush.
echo 100 > /proc/sys/vm/dirty_writeback_centisecs
echo 300 > /proc/sys/vm/dirty_expire_centisecs
# Every user may ping, as in gVisor and on any Debian with systemd.
echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range
# Every user may listen on any port.
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
# Users run in a user namespace (native/guest/confine.h). If a user gets out of it, these settings refuse a new kernel, tracing and
# the log, and programs that the kernel starts by a path in a setting can only load modules (CAP_SYS_MODULE, 1 << 16).
echo 1 > /proc/sys/kernel/kexec_load_disabled
echo 1 > /proc/sys/kernel/unprivileged_bpf_disabled
echo 1 > /proc/sys/kernel/dmesg_restrict
echo 2 > /proc/sys/kernel/kptr_restrict
echo 3 > /proc/sys/kernel/perf_event_paranoid
echo '65536 0' > /proc/sys/kernel/usermodehelper/bset
ulimit -n 1048576
hostname sandbox
# The loopback has ::1 too, which is also `localhost`.
[ ! -e /proc/sys/net/ipv6 ] || echo 0 > /proc/sys/net/ipv6/conf/lo/disable_ipv6
ip link set lo up
ip addr add @GUEST_ADDRESS@/@PREFIX_LENGTH@ dev eth0
ip link set eth0 up
ip route add default via @GATEWAY_ADDRESS@
mkdir -p /mnt/disk
cat /sys/firmware/qemu_fw_cfg/by_name/opt/cloche/boot/raw > /mnt/boot.json
rmmod qemu_fw_cfg
# When memory runs out, the kernel kills users' programs and none of ours: the spawner resets this for programs that it starts.
echo -1000 > /proc/self/oom_score_adj
vm-clock > /dev/@CONSOLE@ 2>&1 &
cd /
@AGENT_ENVIRONMENT@
@AGENT_COMMAND@ /mnt/boot.json < /dev/null > /dev/@CONSOLE@ 2>&1 &
wait $!
echo "cloche: the agent ended with status $?" > /dev/@CONSOLE@
poweroff -f
