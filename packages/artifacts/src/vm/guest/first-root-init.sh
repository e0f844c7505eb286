#!/bin/busybox sh
# First process of a virtual machine, in its first root (initramfs): loads the drivers of disks and network, then hands
# over to the system image. All output goes to the serial line, of which the host keeps the end.
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
while read -r module; do
  busybox insmod "/$module" || echo "cloche: module $module failed"
done < /boot-modules
if ! busybox mount -t ext4 -o ro,noload /dev/vda /system; then
  echo "cloche: the system image cannot be mounted"
  busybox poweroff -f
fi
busybox umount /proc
busybox umount /sys
busybox mount -o move /dev /system/dev
exec busybox switch_root /system /cloche-vm/init
