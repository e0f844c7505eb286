// A guest in a user namespace of its own, as in virtual machines: what its root cannot do to the kernel that it shares with the
// agent, in another user namespace of its own either, and what still works. On the machine's own kernel, whose settings the
// attacks only read and write back as they are.
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Guest, NativeSpawner } from "../../packages/agent/src/spawner/index.ts";
import { guestBinary, guestOptions, isGvisor, isRoot, makeDisk } from "./guest-fixture.ts";

describe.skipIf(!isRoot || isGvisor)("a guest in a user namespace", () => {
  let spawner: NativeSpawner;
  let diskPath: string;
  beforeAll(async () => {
    diskPath = makeDisk();
    mkdirSync(join(diskPath, "fs/home/other"));
    spawner = new NativeSpawner(await guestBinary(), { ...guestOptions, userNamespace: true });
    await spawner.attach(diskPath);
  });
  afterAll(async () => {
    await spawner.detach();
    rmSync(diskPath, { recursive: true, force: true });
  });

  const run = async (guest: Guest, line: string, user = "root"): Promise<string> => {
    let text = "";
    const program = await guest.spawn({
      argv: ["/bin/sh", "-c", line],
      env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
      user,
      onOutput: (_stream, chunk) => {
        text += chunk.toString();
      },
    });
    await program.exited;
    return text;
  };
  /** Each attack says "done" where it succeeds. */
  const attacks: readonly [what: string, line: string][] = [
    [
      "a setting of the kernel",
      'v=$(cat /proc/sys/kernel/core_pattern); echo "$v" > /proc/sys/kernel/core_pattern',
    ],
    ["lifting the mount over settings", "umount /proc/sys"],
    ["making settings writable", "mount -o remount,bind,rw /proc/sys"],
    ["another procfs", "mkdir -p /p; mount -t proc proc /p"],
    ["sysrq", "test -e /proc/sysrq-trigger && test ! -c /proc/sysrq-trigger"],
    ["the kernel's memory", "head -c 16 /proc/kcore | grep -q ."],
    ["sysfs", "mount -o remount,bind,rw /sys"],
    ["device nodes of all", "mkdir -p /d; mount -t devtmpfs dev /d"],
    ["a device node", "mknod /block b 254 16"],
    ["debugfs", "mkdir -p /g; mount -t debugfs none /g"],
    ["a release agent", "mkdir -p /c; mount -t cgroup -o none,name=x none /c && echo /x > /c/release_agent"],
    ["its own limit", "mkdir -p /c2; mount -t cgroup2 none /c2 && echo max > /c2/pids.max"],
    ["packets of the link", "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'"],
    ["the agent's side of pid 1", "ls /proc/1/root/"],
  ];
  test.each(attacks)("its root does not reach %s, in a namespace of its own either", async (_what, line) => {
    const tried = `(${line}) > /dev/null 2>&1 && echo done || echo refused`;
    expect(await run(spawner.guest, tried)).toBe("refused\n");
    const quoted = tried.replaceAll("'", `'\\''`);
    const nested = `unshare -U -r -m -p -i -C --fork sh -c '${quoted}'`;
    // A cgroup namespace of its own begins at its own cgroup; packets of a link that it has not are none.
    expect(await run(spawner.guest, nested)).toBe("refused\n");
  });

  test("calls that would be the kernel's root's are refused", async () => {
    const calls = [
      "import ctypes, errno, platform",
      "libc = ctypes.CDLL(None, use_errno=True)",
      "arm = platform.machine() == 'aarch64'",
      "init, finit, kexec, bpf, fan, iopl, handle, syslog = (105, 273, 104, 280, 262, None, 265, 116) if arm else (175, 313, 246, 321, 300, 172, 304, 103)",
      "buffer = ctypes.create_string_buffer(256)",
      "def call(n, *rest): return 'none' if n is None else 'done' if libc.syscall(n, *rest) >= 0 else errno.errorcode[ctypes.get_errno()]",
      // A fanotify group whose events carry descriptors would lead into the agent's mounts.
      "print(call(init, buffer, 8, b''), call(kexec, 0, 0, None, 0), call(bpf, 0, buffer, 128), call(fan, 0, 0), call(iopl, 3), call(handle, 3, buffer, 0), call(syslog, 3, buffer, 1))",
    ].join("\n");
    const said = (await run(spawner.guest, `python3 -c "${calls.replaceAll('"', '\\"')}"`)).trim().split(" ");
    expect(said).toHaveLength(7);
    expect(said).not.toContain("done");
  });

  test("what programs need works: tmpfs, host name, owners, set-uid, and files made by the file server", async () => {
    const { guest } = spawner;
    await guest.files.setHostname("inner");
    expect(await run(guest, "hostname")).toBe("inner\n");
    expect(await run(guest, "hostname outer && hostname")).toBe("outer\n");
    const made =
      "mkdir -p /m && mount -t tmpfs none /m && echo x > /m/x && chown 1000:2000 /m/x && stat -c %u:%g /m/x";
    expect(await run(guest, made)).toBe("1000:2000\n");
    // The file server has the same mounts.
    expect((await guest.files.lstat("/m/x")).sizeBytes).toBe(2);
    await guest.files.write("/root/file", Buffer.from("text"), 0o600);
    expect(await run(guest, "cat /root/file; ls -A /root")).toBe("textfile\n");
    expect(await run(guest, "cat /root/file 2>&1 | tail -c 18; id -u", "ann")).toBe(
      "Permission denied\n1000\n",
    );
    expect(await run(guest, "cat /proc/self/uid_map | tr -s ' '")).toBe(" 0 0 4294967295\n");
    expect(await run(guest, "ls /dev/fuse /dev/net/tun")).toBe("/dev/fuse\n/dev/net/tun\n");
  });

  test("a container is held as its sandbox is", async () => {
    const container = await spawner.openContainer("c", {
      ...guestOptions,
      root: join(diskPath, "fs"),
      tmpfs: [],
    });
    expect(
      await run(container, "mkdir -p /q; mount -t proc proc /q 2> /dev/null && echo done || echo refused"),
    ).toBe("refused\n");
    await container.close();
  });
});
