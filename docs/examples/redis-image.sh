#!/bin/sh
# sh docs/examples/redis-image.sh <layout>: an OCI image of Debian's Redis, tag 7, in a new image layout. Needs no registry.
# Of the machine it takes what `apt-get install umoci redis-tools busybox-static` puts there (no server is started by that).
set -eu
layout=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

umoci init --layout "$layout"
umoci new --image "$layout:7"
umoci unpack --image "$layout:7" "$work/bundle"
root=$work/bundle/rootfs
mkdir -p "$root/bin" "$root/etc" "$root/tmp" "$root/data"
cp "$(command -v busybox)" "$root/bin/busybox"
for name in sh cat ls ps kill pidof; do ln -s busybox "$root/bin/$name"; done
echo 'root:x:0:0:root:/data:/bin/sh' > "$root/etc/passwd"

# Debian's server is the same program as its checker: it looks at the name that it is called by.
server=$(command -v redis-check-rdb)
client=$(command -v redis-cli)
cp "$server" "$root/bin/redis-server"
cp "$client" "$root/bin/redis-cli"
ldd "$server" "$client" | grep -o '/[^ :]*' | sort -u | while read -r library; do
  [ "$library" = "$server" ] || [ "$library" = "$client" ] || cp -L --parents "$library" "$root"
done

umoci repack --image "$layout:7" "$work/bundle"
umoci config --image "$layout:7" --config.workingdir /data \
  --config.entrypoint redis-server --config.cmd --bind --config.cmd 127.0.0.1 --config.cmd --appendonly --config.cmd yes
