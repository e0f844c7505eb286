#!/bin/bash
# node.sh up|down|in CMD…|kubelet [-9]|containerd: a node of Kubernetes in its own mount, network, pid, ipc, uts and cgroup
# namespaces. NODE: an empty folder. FIRST: that of the first node, which runs the cluster's own programs, too. ID: 1 of the
# first, 2 of one that joins it. PROGRAMS: what programs.ts built. CNI: a folder with Debian's network plug-ins.
# Its first process is `init` below: when that ends, all in the node ends, and its mounts and networks go with it.
ME=$(readlink -f "$0"); B=$PROGRAMS V=$NODE/var L=$NODE/log
NAME=n$ID GROUP=cloche-node-n$ID IP=10.99.0.$ID PODS=10.97.$ID.0/24 SERVER=10.99.0.1
export PATH=$B:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin KUBECONFIG=$NODE/admin.conf NODE PROGRAMS CNI

trees() { [ -f /sys/fs/cgroup/cgroup.controllers ] && { echo /sys/fs/cgroup; return; }
  for t in /sys/fs/cgroup/*; do [ -L "$t" ] || { [ -f "$t/cgroup.procs" ] && echo "$t"; }; done; }
# On v2 a group has processes or groups below, not both: the node's own processes are in `init`.
join() { for t in $(trees); do g=$t/$GROUP; [ -d "$g/init" ] && g=$g/init; echo 0 >"$g/cgroup.procs"; done; }
in_node() { (join; exec nsenter -t "$(cat "$NODE/init.pid")" -m -n -p -C -u -i -- "$@"); }
wait_for() { for _ in $(seq 240); do "$@" >/dev/null 2>&1 && return; sleep 0.5; done; echo "not within 120 s: $*" >&2; return 1; }

settings() {
  openssl genrsa -out "$NODE/sa.key" 2048 2>/dev/null; echo "admintoken,admin,1,system:masters" >"$NODE/tokens.csv"
  cat >"$NODE/admin.conf" <<E
{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],
 users: [{name: u, user: {token: admintoken}}],
 clusters: [{name: c, cluster: {server: "https://$SERVER:6443", insecure-skip-tls-verify: true}}]}
E
  # cgroup v1 is allowed, and no score of the out-of-memory killer is lowered: where this runs in a container, both must be so.
  cat >"$NODE/kubelet.yaml" <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: "unix:///run/containerd/containerd.sock"
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
oomScoreAdj: 0
maxOpenFiles: 20000
resolvConf: ""
evictionHard: {nodefs.available: "1%", imagefs.available: "1%", memory.available: 100Mi}
imageGCHighThresholdPercent: 100
failSwapOn: false
volumePluginDir: /var/lib/kubelet/vp
E
  cat >"$NODE/kube-proxy.yaml" <<E
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $NODE/admin.conf}
hostnameOverride: $NAME
clusterCIDR: 10.97.0.0/16
conntrack: {maxPerCore: 0, min: 0}
E
  cat >"$NODE/containerd.toml" <<E
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "cloche.test/pause:1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$CNI"
conf_dir = "$NODE/cni"
E
  mkdir -p "$NODE/cni"; cat >"$NODE/cni/bridge.conflist" <<E
{"cniVersion": "0.4.0", "name": "bridge", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
 "hairpinMode": true, "ipam": {"type": "host-local", "subnet": "$PODS", "routes": [{"dst": "0.0.0.0/0"}]}}]}
E
}

up() { mkdir -p "$V/lib" "$V/log" "$V/run" "$L"; settings
  for t in $(trees); do mkdir -p "$t/$GROUP"
    if [ -f "$t/cgroup.controllers" ]; then sed 's/[a-z]*/+&/g' "$t/cgroup.controllers" >"$t/cgroup.subtree_control"
    elif [ -f "$t/$GROUP/cpuset.cpus" ]; then
      cat "$t/cpuset.cpus" >"$t/$GROUP/cpuset.cpus"; cat "$t/cpuset.mems" >"$t/$GROUP/cpuset.mems"; fi; done
  (join; exec setsid unshare -m -n -p -C -u -i -f --propagation private --kill-child "$ME" init) >"$L/init" 2>&1 </dev/null &
  u=$!; wait_for pgrep -P $u; pgrep -P $u | head -1 >"$NODE/init.pid"
  [ "$ID" = 1 ] || plug
  wait_for in_node kubectl get --raw=/readyz && wait_for in_node ctr -n k8s.io version && in_node "$ME" kubelet; }

# The first node's other end of its cable.
plug() { first=$(cat "$FIRST/init.pid")
  nsenter -t "$first" -n ip link set v1 netns "$(cat "$NODE/init.pid")"
  nsenter -t "$first" -n ip route add $PODS via $IP; }

init() { cd "$NODE" || exit; mount --make-rshared /; mount -t proc proc /proc; mount -t tmpfs run /run
  mount --bind "$V/lib" /var/lib; mount --bind "$V/log" /var/log; mkdir -p /run/containerd
  # The computer's kernel settings stay as they are: kubelet writes these into copies.
  for f in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    cp "/proc/sys/$f" "/run/${f##*/}"; mount --bind "/run/${f##*/}" "/proc/sys/$f"; done
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    umount -l /sys/fs/cgroup; mount -t cgroup2 cgroup /sys/fs/cgroup
    mkdir /sys/fs/cgroup/init; echo 0 >/sys/fs/cgroup/init/cgroup.procs
  else all=$(trees); umount -l /sys/fs/cgroup; mount -t tmpfs cgroup /sys/fs/cgroup
    for t in $all; do t=${t##*/}; mkdir "/sys/fs/cgroup/$t"
      case $t in unified) y=cgroup2 o=rw;; systemd) y=cgroup o=none,name=systemd;; *) y=cgroup o=$t;; esac
      mount -t $y -o $o cgroup "/sys/fs/cgroup/$t"; done; fi
  hostname $NAME; ip link set lo up; sysctl -qw net.ipv4.ip_forward=1
  if [ "$ID" = 1 ]; then cable=v0; ip link add v0 type veth peer name v1; ip link set v1 up
  else cable=v1; wait_for ip link show v1; fi
  ip addr add $IP/24 dev $cable; ip link set $cable up; ip route add default dev $cable
  if [ "$ID" = 1 ]; then cluster; else ip route add 10.97.1.0/24 via $SERVER; fi
  kube-proxy --config=kube-proxy.yaml >"$L/proxy" 2>&1 &
  containerd_
  trap 'exit' TERM; while :; do wait; sleep 1; done; }

cluster() {
  etcd --data-dir "$NODE/etcd" --unsafe-no-fsync >"$L/etcd" 2>&1 &
  kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=$IP --advertise-address=$IP --cert-dir="$V/run" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=sa.key \
    --service-account-signing-key-file=sa.key --service-cluster-ip-range=10.98.0.0/24 --authorization-mode=Node,RBAC \
    --allow-privileged --kubelet-preferred-address-types=InternalIP --token-auth-file=tokens.csv >"$L/apiserver" 2>&1 &
  wait_for kubectl get --raw=/readyz
  kube-controller-manager --kubeconfig=admin.conf --leader-elect=false --service-account-private-key-file=sa.key \
    --root-ca-file="$V/run/apiserver.crt" --cert-dir=/run/kcm >"$L/controllers" 2>&1 &
  kube-scheduler --kubeconfig=admin.conf --authentication-kubeconfig=admin.conf --authorization-kubeconfig=admin.conf \
    --leader-elect=false --cert-dir=/run/ks >"$L/scheduler" 2>&1 & }

containerd_() { [ -f /run/containerd.pid ] && { kill -9 "$(cat /run/containerd.pid)"; sleep 2; }
  setsid containerd -c "$NODE/containerd.toml" >>"$L/containerd" 2>&1 </dev/null & echo $! >/run/containerd.pid; }
kubelet_() { [ -f /run/kubelet.pid ] && { kill "${1:--TERM}" "$(cat /run/kubelet.pid)"; sleep 1; }
  setsid kubelet --config="$NODE/kubelet.yaml" --kubeconfig="$NODE/admin.conf" --hostname-override=$NAME --node-ip=$IP \
    --root-dir=/var/lib/kubelet --v=2 >>"$L/kubelet" 2>&1 </dev/null & echo $! >/run/kubelet.pid; }

down() { [ -f "$NODE/init.pid" ] && kill -9 "$(cat "$NODE/init.pid")"; sleep 2
  # What is frozen dies when it is thawed.
  find /sys/fs/cgroup/freezer/$GROUP -name freezer.state -exec sh -c 'echo THAWED >"$1"' _ {} \; 2>/dev/null; sleep 1
  for t in $(trees); do for _ in $(seq 100); do
    [ -d "$t/$GROUP" ] || break; find "$t/$GROUP" -depth -type d -exec rmdir {} \; 2>/dev/null; sleep 0.1; done; done
  rm -rf "${NODE:?}"; }

command=$1; shift
case $command in up|init|down) "$command";; in) in_node "$@";; kubelet) kubelet_ "$@";; containerd) containerd_;; *) sed -n 2,4p "$0";; esac
