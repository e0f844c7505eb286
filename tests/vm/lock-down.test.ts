// Ways by which root of a virtual machine could run beside the agent: what its kernel starts by a path, what it loads, raw memory
// and disks, and events that carry other mounts' files. Each attack says what became of it, in the users' namespaces and in a
// user namespace of its own; the last test looks for what a program that got out would have left.
import { afterAll, beforeAll, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";
import { fork, resume, suspend } from "./vm-client.ts";

const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create();
  const escape = "#!/bin/sh\\nid > /mnt/disk/fs/root/escaped; ls /agent >> /mnt/disk/fs/root/escaped\\n";
  await client.shell(sandbox, `printf '${escape}' > /root/x; chmod 755 /root/x; ulimit -c unlimited`);
});
afterAll(() => client.session.discard(sandbox.id));

const crash = "(ulimit -c unlimited; sh -c 'kill -SEGV $$'); sleep 2; test -s /root/escaped";
const fresh = (kind: string, at: string): string =>
  `mkdir -p /tmp/${at}; { mountpoint -q /tmp/${at} || mount -t ${kind} ${kind} /tmp/${at}; }`;
/** Done: the exit code says that it succeeded. */
const attacks: readonly [what: string, line: string][] = [
  [
    "core_pattern",
    `${fresh("proc", "p")}; umount /proc/sys; for p in /proc /tmp/p; do echo '|/proc/%P/root/root/x' > $p/sys/kernel/core_pattern; done; ${crash}`,
  ],
  [
    "core_pattern by a remount",
    `mount -o remount,bind,rw /proc/sys; echo '|/mnt/disk/fs/root/x' > /proc/sys/kernel/core_pattern; ${crash}`,
  ],
  [
    "modprobe, poweroff_cmd and hotplug",
    "for n in modprobe poweroff_cmd hotplug; do echo /mnt/disk/fs/root/x > /proc/sys/kernel/$n && exit 0; done; exit 1",
  ],
  ["uevent_helper", "mount -o remount,bind,rw /sys; echo /root/x > /sys/kernel/uevent_helper"],
  [
    "a cgroup's release agent",
    `mkdir -p /tmp/c; mount -t cgroup -o none,name=x none /tmp/c && echo /mnt/disk/fs/root/x > /tmp/c/release_agent`,
  ],
  ["binfmt_misc", fresh("binfmt_misc", "b")],
  ["debugfs", fresh("debugfs", "d")],
  ["tracefs", fresh("tracefs", "t")],
  ["all device nodes", fresh("devtmpfs", "n")],
  [
    "its disk as a device",
    "rm -f /disk; mknod /disk b 254 16 && head -c 512 /disk > /tmp/sector && test -s /tmp/sector",
  ],
  [
    "its disk mounted again",
    "rm -f /disk; mknod /disk b 254 16; mkdir -p /tmp/m; mount -t ext4 /disk /tmp/m",
  ],
  ["its file system read-only", "mount -o remount,ro / && ! touch /root/written"],
  ["memory", "rm -f /mem; mknod /mem c 1 1 && head -c 16 /mem > /tmp/mem && test -s /tmp/mem"],
  ["the kernel's memory", "head -c 16 /proc/kcore > /tmp/core && test -s /tmp/core"],
  ["the kernel's log", "dmesg > /tmp/log && test -s /tmp/log"],
  ["sysrq", "echo h > /proc/sysrq-trigger && test ! -c /proc/sysrq-trigger"],
  ["a limit of its own", `${fresh("cgroup2", "g")} && echo max > /tmp/g/pids.max`],
  ["the boot configuration", "cat /sys/firmware/qemu_fw_cfg/by_name/opt/cloche/boot/raw"],
  [
    "PCI devices",
    "f=$(ls /sys/bus/pci/devices/*/config | head -1); dd if=$f of=$f bs=4 count=1 conv=notrunc",
  ],
];

test.each(attacks)("root does not get to %s", async (_what, line) => {
  const tried = `(${line}) > /dev/null 2>&1 && echo done || echo refused`;
  expect(await client.shell(sandbox, tried)).toBe("refused\n");
  const nested = await client.exec(sandbox, [
    "unshare",
    "-U",
    "-r",
    "-m",
    "-p",
    "-i",
    "-C",
    "--fork",
    "sh",
    "-c",
    tried,
  ]);
  expect(nested.stdout, nested.stderr).toBe("refused\n");
});

test("calls of the kernel's root are refused", async () => {
  const calls = [
    "import ctypes, errno, os, platform",
    "libc = ctypes.CDLL(None, use_errno=True)",
    "arm = platform.machine() == 'aarch64'",
    "buffer = ctypes.create_string_buffer(256)",
    "names = 'init_module finit_module kexec_load bpf fanotify_init iopl reboot'.split()",
    "numbers = (105, 273, 104, 280, 262, None, 142) if arm else (175, 313, 246, 321, 300, 172, 169)",
    "rest = [(buffer, 8, b''), (0, b'', 0), (0, 0, None, 0), (0, buffer, 128), (0, 0), (3,), (0xfee1dead, 672274793, 0x89abcdef, 0)]",
    "for name, n, more in zip(names, numbers, rest):",
    "  if n is not None: print(name, 'done' if libc.syscall(n, *more) >= 0 else errno.errorcode[ctypes.get_errno()])",
    "handle = libc.open_by_handle_at",
    "print('handle', 'done' if handle(os.open('/', 0), b'\\x08\\0\\0\\0\\x01\\0\\0\\0\\x02\\0\\0\\0\\0\\0\\0\\0', 0o200000) >= 0 else errno.errorcode[ctypes.get_errno()])",
  ].join("\n");
  for (const prefix of [[], ["unshare", "-U", "-r"]]) {
    const { stdout, stderr } = await client.exec(sandbox, [...prefix, "python3", "-c", calls]);
    const said = stdout.trim().split("\n");
    expect(said.length, stderr).toBeGreaterThan(6);
    expect(said.filter((line) => !line.endsWith(" EPERM"))).toEqual([]);
  }
});

test("nothing got out, and what programs need works as before, in forks and after a suspend too", async () => {
  const left = "ls /root/escaped 2> /dev/null; cat /proc/sys/kernel/core_pattern";
  expect(await client.shell(sandbox, left)).toBe("core\n");
  const works =
    "set -e; hostname; mkdir -p /tmp/w; mountpoint -q /tmp/w || mount -t tmpfs none /tmp/w; echo x > /tmp/w/x; chown 1000:1000 /tmp/w/x; " +
    "su user -c 'cat /tmp/w/x; sudo id -u'; ping -c 1 -W 5 127.0.0.1 > /dev/null; python3 -c 'import socket; socket.socket().bind((\"0.0.0.0\", 80))'; " +
    "unshare -n ip link add d0 type dummy; mkdir -p /tmp/l/u /tmp/l/w /tmp/l/m; mountpoint -q /tmp/l/m || mount -t overlay -o lowerdir=/etc,upperdir=/tmp/l/u,workdir=/tmp/l/w none /tmp/l/m; ls /tmp/l/m/passwd; " +
    "mkdir -p /tmp/d/DEBIAN /tmp/d/opt; printf 'Package: tried\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n' > /tmp/d/DEBIAN/control; touch /tmp/d/opt/tried; " +
    "dpkg-deb -b /tmp/d /tmp/d.deb > /dev/null; dpkg -i /tmp/d.deb > /dev/null; ls /opt/tried";
  expect(await client.shell(sandbox, "ulimit -l")).toBe("unlimited\n");
  const fine = /^\S+\nx\n0\n\/tmp\/l\/m\/passwd\n\/opt\/tried\n$/;
  expect(await client.shell(sandbox, works)).toMatch(fine);
  const inMount = await client.call(sandbox, "GET", "/v1/files?path=/tmp/w/x");
  expect(inMount.body.toString()).toBe("x\n");
  const copy = await fork(client, sandbox);
  await suspend(client, sandbox);
  await resume(client, sandbox);
  for (const each of [sandbox, copy]) {
    expect(await client.shell(each, works)).toMatch(fine);
    expect(await client.shell(each, "umount /proc/sys 2> /dev/null || echo held")).toBe("held\n");
  }
});
