// What root in a sandbox must not do to the kernel under it, to the agent beside it, or to the machine: every attempt may fail as it likes.
import { existsSync, readFileSync } from "node:fs";
import { afterEach, beforeAll, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const isGvisor = inject("service").runtime === "gvisor"; // a virtual machine's kernel and disks are its own
let sandbox: TestSandbox;
let neighbour: TestSandbox;
beforeAll(async () => {
  [sandbox, neighbour] = await Promise.all([client.create(), client.create()]);
  await client.call(sandbox, "PUT", "/v1/store/kept", { json: { value: "yes" } });
});

/** Whatever was tried: the sandbox's agent, its store and the neighbour answer. */
afterEach(async () => {
  const answers = await eventually(
    () => client.exec(sandbox, ["echo", "fine"]).catch(() => undefined),
    (result) => result?.stdout === "fine\n",
  );
  expect(answers?.stdout).toBe("fine\n");
  const kept = await client.call(sandbox, "GET", "/v1/store/kept");
  expect(JSON.parse(kept.body.toString())).toMatchObject({ value: "yes" });
  expect((await client.exec(neighbour, ["echo", "fine"])).stdout).toBe("fine\n");
});

const script = (text: string): Promise<{ stdout: string; stderr: string; exit_code: number }> =>
  client.exec(sandbox, ["sh", "-c", text], { timeout_ms: 20_000 });
const python = async (lines: string[]): Promise<string> =>
  (await client.exec(sandbox, ["python3", "-c", lines.join("\n")], { timeout_ms: 20_000 })).stdout;

test("device nodes of the host's disks and memory open nothing", async () => {
  const nodes = ["b 7 0", "b 8 0", "b 252 0", "b 253 0", "b 254 0", "b 259 0", "c 1 1", "c 1 2", "c 10 232"];
  const tries = nodes.map(
    (node, i) =>
      `for d in /root /tmp /dev; do mknod $d/n${i} ${node} && head -c 4096 $d/n${i} | wc -c; rm -f $d/n${i}; done`,
  );
  const { stdout } = await script(`(${tries.join("; ")}) 2>/dev/null; true`);
  expect(stdout.split("\n").filter((line) => Number(line) > 0)).toEqual([]);
  const kmem = await script("head -c 16 /dev/mem || head -c 16 /dev/kmem || head -c 16 /proc/kcore | wc -c");
  if (isGvisor) expect(kmem.stdout.trim()).toMatch(/^0?$/);
});

test("mounts show nothing of the host or of the agent", async () => {
  const kinds = [
    "sysfs",
    "proc",
    "devtmpfs",
    "debugfs",
    "tracefs",
    "securityfs",
    "bpf",
    "pstore",
    "efivarfs",
  ];
  kinds.push("configfs", "cgroup", "cgroup2", "fusectl", "hugetlbfs", "mqueue", "9p", "overlay", "autofs");
  const tries = kinds.map(
    (kind) => `mkdir -p /mnt/${kind}; mount -t ${kind} none /mnt/${kind} && echo ${kind}`,
  );
  const mounted = await script(`(${tries.join("; ")}) 2>/dev/null; true`);
  expect(mounted.exit_code).toBe(0);
  // Whatever could be mounted: no process beyond the users' own, no file of the agent's root, no disk but an own one.
  const seen = await script(
    "cat /mnt/proc/[0-9]*/cmdline /mnt/proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'",
  );
  expect(seen.stdout).not.toMatch(/agent\.cjs|boot\.json|runsc|packages\/service/);
  const found = await script(
    "find /mnt /proc/*/root/ -maxdepth 3 -name boot.json -o -maxdepth 3 -name store.db 2>/dev/null",
  );
  expect(found.stdout).toBe("");
  for (const kind of kinds.toReversed()) await script(`umount /mnt/${kind}`);
});

test("a cgroup hierarchy that root mounts is the sandbox's own, and does not reach the agent", async () => {
  const attack = [
    "mkdir -p /mnt/cg && for c in pids memory cpu freezer devices; do",
    "  mount -t cgroup -o $c none /mnt/cg || continue",
    "  for g in /mnt/cg /mnt/cg/*/; do",
    "    for p in $(seq 1 200); do echo $p > $g/cgroup.procs; done",
    "    echo 1 > $g/pids.max; echo FROZEN > $g/freezer.state; echo 4096 > $g/memory.limit_in_bytes",
    "    echo 1 > $g/notify_on_release; echo /root/escape > $g/release_agent; echo max > $g/pids.max",
    "  done; umount /mnt/cg",
    "done 2>/dev/null",
    "mount -t cgroup2 none /mnt/cg 2>/dev/null && umount /mnt/cg; true",
  ];
  // It may spoil its own limit of processes, and then its own execs: in a sandbox of its own.
  const attacker = await client.create();
  const before = readFileSync("/proc/self/cgroup", "utf8");
  const prepare = "printf '#!/bin/sh\\ntouch /root/escaped\\n' > /root/escape; chmod +x /root/escape";
  await client.shell(attacker, prepare);
  if (isGvisor) await client.exec(attacker, ["sh", "-c", attack.join("\n")], { timeout_ms: 20_000 });
  expect(readFileSync("/proc/self/cgroup", "utf8")).toBe(before);
  // Files and store still answer, so the agent was neither frozen nor starved.
  const write = await client.call(attacker, "POST", "/v1/files?path=/root/after", { body: Buffer.from("x") });
  expect(write.status).toBe(200);
  const set = await client.call(attacker, "PUT", "/v1/store/after", { json: { value: 1 } });
  expect(set.status).toBe(200);
  expect((await client.call(attacker, "GET", "/v1/files?path=/root/escaped")).status).toBe(404);
  await client.session.discard(attacker.id);
});

// Linux gives a virtual machine's root its own groups, which bound nothing outside it.
if (isGvisor)
  test("root that leaves its group of processes meets the memory's bound instead", async () => {
    const attacker = await client.create({ memory_mb: 512 });
    const leave =
      "mkdir -p /mnt/cg && mount -t cgroup -o pids none /mnt/cg && echo $$ > /mnt/cg/cgroup.procs";
    const left = await client.exec(attacker, ["sh", "-c", `${leave} && grep pids: /proc/self/cgroup`]);
    expect(left.stdout).toMatch(/pids:\/\n/);
    const bomb =
      "import os, time\nfor _ in range(4000):\n  if os.fork() == 0: time.sleep(60); os._exit(0)\nprint('all')";
    const bombing = client.exec(
      attacker,
      ["sh", "-c", `echo $$ > /mnt/cg/cgroup.procs; exec python3 -c "${bomb}"`],
      {
        timeout_ms: 60_000,
      },
    );
    const ended = await bombing;
    expect(ended).toMatchObject({ exit_code: 137, timed_out: false, stdout: "" });
    expect((await client.exec(attacker, ["echo", "alive"])).stdout).toBe("alive\n");
    await client.session.discard(attacker.id);
  });

if (isGvisor)
  test("root that leaves its group does not put the memory guard to sleep", async () => {
    const attacker = await client.create({ memory_mb: 512 });
    await client.shell(attacker, "mkdir -p /mnt/cg && mount -t cgroup -o pids none /mnt/cg");
    // Without programs in the group the guard slept after three looks of a second or two.
    const hog = [
      "import os, time",
      "open('/mnt/cg/cgroup.procs', 'w').write(str(os.getpid()))",
      "time.sleep(9)",
      "open('/root/left', 'w').write(open('/proc/self/cgroup').read())",
      "kept = []",
      "while True:",
      "  kept.append(bytearray(16 << 20))",
      "  open('/root/taken', 'a').write('x' * 16)",
    ].join("\n");
    await client.shell(attacker, `setsid python3 -c "${hog}" > /dev/null 2>&1 < /dev/null &`);
    // An exec would wake the guard; reading a file does not. One byte for each MiB taken.
    const read = async (path: string): Promise<string> =>
      (await client.call(attacker, "GET", `/v1/files?path=${path}`)).body.toString();
    await new Promise((resolve) => setTimeout(resolve, 9_000));
    let before = "";
    const taken = await eventually(
      async () => {
        const [last, now] = [before, await read("/root/taken")];
        before = now;
        await new Promise((resolve) => setTimeout(resolve, 2_000));
        return now === last ? now.length : 0;
      },
      (mib) => mib > 0,
    );
    expect(await read("/root/left")).toMatch(/pids:\/\n/);
    expect(taken).toBeGreaterThan(256);
    expect(taken).toBeLessThan(768);
    await client.session.discard(attacker.id);
  });

test("writes to /proc and /sys change nothing of the host's", async () => {
  const files = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname"];
  const host = (): string[] =>
    files.map((path) => (existsSync(path) ? readFileSync(path, "utf8") : "the host's kernel has none"));
  const before = host();
  const targets = [
    ...files,
    "/sys/kernel/uevent_helper",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/vm/drop_caches",
  ];
  if (isGvisor) targets.push("/proc/sysrq-trigger", "/proc/sys/kernel/panic");
  const tries = targets.map((path) => `echo '|/tmp/evil' > ${path}`);
  await script(
    `mount -o remount,rw /proc/sys; mount -o remount,rw /sys; (${tries.join("; ")}) 2>/dev/null; true`,
  );
  if (isGvisor) await script("for c in c b o e i; do echo $c > /proc/sysrq-trigger; done 2>/dev/null; true");
  expect(host()).toEqual(before);
});

test("a key in a keyring is not found by a neighbour", async () => {
  const call = (line: string): string[] => [
    "import ctypes, os, platform",
    "libc = ctypes.CDLL(None, use_errno=True)",
    "arm = platform.machine() == 'aarch64'",
    "add, request = (217, 218) if arm else (248, 249)",
    line,
  ];
  await python(
    call("print(libc.syscall(add, b'user', b'cloche-isolation', b'secret', 6, ctypes.c_long(-4)))"),
  );
  const look = call("print(libc.syscall(request, b'user', b'cloche-isolation', None, ctypes.c_long(-4)))");
  const found = await client.exec(neighbour, ["python3", "-c", look.join("\n")]);
  expect(found.stdout).toBe("-1\n");
});

test("root sees, traces and signals no process of the agent", async () => {
  const attack = [
    "import ctypes, os, signal",
    "libc = ctypes.CDLL(None, use_errno=True)",
    "pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]",
    "names = [open(f'/proc/{p}/comm').read().strip() for p in pids]",
    "print('node' in names, any('agent' in n or 'files' in n for n in names))",
    // The one process of ours that is visible holds nothing but two sockets of the sandbox's own.
    "def peek(path):",
    "  try: return open(path, 'rb').read(4096)",
    "  except OSError: return b''",
    "print(peek('/proc/1/environ'), b'boot.json' in peek('/proc/1/cmdline'))",
    "try: print('boot.json' in str(os.listdir('/proc/1/root/mnt')))",
    "except OSError: print(False)",
    // PTRACE_ATTACH and PTRACE_SEIZE; nothing that runs for users has the agent's memory.
    "for request in (16, 0x4206): libc.ptrace(request, 1, None, None)",
    "for p in range(2, 400):",
    "  if p not in pids and p != os.getpid():",
    "    try: os.kill(p, signal.SIGKILL)",
    "    except OSError: pass",
  ];
  const said = await python(attack);
  expect(said).toBe("False False\nb'' False\nFalse\n");
  // Everything that root may signal, it may end; the agent, outside the pid namespace, answers (afterEach).
  await script("kill -STOP 1; kill -9 -1").catch(() => undefined);
});

test("the end of pid 1 takes the users' processes, not the agent", async () => {
  await script("kill -9 1").catch(() => undefined);
});

/** What a process is allowed, and in which namespaces: the same for everybody whom the sandbox lets become root. */
const rights = [
  "import os",
  "status = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)",
  "print(os.geteuid(), status['CapEff'], status['CapBnd'])",
  "print([os.readlink(f'/proc/self/ns/{kind}') for kind in ('pid', 'mnt', 'net', 'ipc', 'uts', 'user')])",
  "def seen():",
  "  try: return 'boot.json' in os.listdir('/proc/1/root/mnt')",
  "  except PermissionError: return False",
  "print(os.path.exists('/mnt/boot.json'), seen())",
].join("\n");

test("a set-uid program gives a user no more than the sandbox's root has", async () => {
  const root = await client.exec(sandbox, ["python3", "-c", rights]);
  await script("cp -L /usr/bin/python3 /usr/local/bin/suid && chmod 4755 /usr/local/bin/suid");
  const look = `import os; os.setgid(0); os.setuid(0)\n${rights}`;
  const result = await client.exec(sandbox, ["/usr/local/bin/suid", "-c", look], { user: "nobody" });
  expect(result.stderr).toBe("");
  expect(result.stdout).toBe(root.stdout);
  expect(result.stdout).toMatch(/^0 [0-9a-f]{16} [0-9a-f]{16}\n/);
  expect(result.stdout).toMatch(/False False\n$/);
  await script("rm /usr/local/bin/suid");
});

test("a file's capabilities give a user none that the sandbox's root has not", async () => {
  // Version 2, effective: all that there are, CAP_NET_RAW (13) among them.
  const all = "struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)";
  await script(
    `cp -L /usr/bin/python3 /usr/local/bin/caps; python3 -c "import os, struct; os.setxattr('/usr/local/bin/caps', 'security.capability', ${all})"`,
  );
  const look = [
    "import socket",
    "print(int(dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)['CapEff'], 16) >> 13 & 1)",
    "try: print(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
    "except OSError: print('refused')",
  ].join("\n");
  const result = await client.exec(sandbox, ["/usr/local/bin/caps", "-c", look], { user: "nobody" });
  // In a virtual machine, whose kernel is the sandbox's own, root has it.
  const root = isGvisor ? "0\nrefused\n" : (await client.exec(sandbox, ["python3", "-c", look])).stdout;
  expect(result.exit_code === 0 ? result.stdout : "0\nrefused\n").toBe(root);
  await script("rm /usr/local/bin/caps");
});
