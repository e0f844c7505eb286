#!/bin/sh
# Runs a command, by default the tests of this folder, inside gVisor on this machine:
#   sh tests/guest/in-gvisor.sh RUNSC [COMMAND...]
# The machine's root is the sandbox's, read-only; /mnt is a fresh writable directory, where the tests keep their disks.
set -eu
runsc=$1
shift
repository=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
bundle=$(mktemp -d)
name=cloche-guest-$$
cleanup() {
  "$runsc" --root "$bundle/state" kill "$name" KILL 2>/dev/null || true
  ip netns del "$name" 2>/dev/null || true
  rm -rf "$bundle"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
mkdir "$bundle/disk"
sh "$repository/scripts/node.sh" "$repository/packages/agent/build-native.ts" "$bundle/disk/cloche-guest"
if [ $# -eq 0 ]; then
  set -- node node_modules/vitest/vitest.mjs run --configLoader native --cache=false --project guest --hookTimeout 30000 --testTimeout 60000
fi
ip netns add "$name"
ip -n "$name" link set lo up
REPOSITORY=$repository NAME=$name python3 - "$bundle/disk" "$@" > "$bundle/config.json" <<'PYTHON'
import json, os, sys
disk, *command = sys.argv[1:]
capabilities = ["CAP_" + name for name in (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_ADMIN "
    "NET_RAW IPC_LOCK IPC_OWNER SYS_CHROOT SYS_PTRACE SYS_ADMIN SYS_NICE SYS_RESOURCE SYS_TTY_CONFIG MKNOD SETFCAP").split()]
repository = os.environ["REPOSITORY"]
env = {
    "PATH": f"{repository}/node_modules/.bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/mnt", "TMPDIR": "/mnt", "CLOCHE_GUEST_BINARY": "/mnt/cloche-guest",
}
print(json.dumps({
    "ociVersion": "1.0.0",
    "process": {"user": {"uid": 0, "gid": 0}, "args": command, "cwd": repository,
                "env": [f"{key}={value}" for key, value in env.items()],
                "capabilities": {kind: capabilities for kind in ("bounding", "effective", "permitted")}},
    "root": {"path": "/", "readonly": True},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
               {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
               {"destination": "/mnt", "type": "bind", "source": disk, "options": ["rbind", "rslave"]}],
    "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
              + [{"type": "network", "path": "/var/run/netns/" + os.environ["NAME"]}]},
}))
PYTHON
"$runsc" --root "$bundle/state" --platform=systrap --network=sandbox --overlay2=none --host-uds=none \
  --file-access=exclusive --directfs=true --net-disconnect-ok --ignore-cgroups run --bundle "$bundle" "$name" < /dev/null
