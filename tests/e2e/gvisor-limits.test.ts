// The table of docs/gvisor-limits.md, row by row: what changes with a newer gVisor is to be told, and its row removed.
import { readFileSync } from "node:fs";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const onGvisor = test.runIf(inject("service").runtime === "gvisor");
let box: TestSandbox;
beforeAll(async () => {
  box = await client.create({ cpus: 1 });
});
afterAll(() => client.session.discard(box.id));

const prelude = [
  "import ctypes, errno, os, socket",
  "libc = ctypes.CDLL(None, use_errno=True)",
  "buffer = lambda n: ctypes.create_string_buffer(n)",
  // By name, of both architectures' numbers: from 424 on they are the same.
  "arm = os.uname().machine == 'aarch64'",
  "def call(n, *rest):",
  "  n = n[arm] if isinstance(n, tuple) else n",
  "  return 'done' if libc.syscall(n, *rest) >= 0 else errno.errorcode[ctypes.get_errno()]",
  "def attempt(act):",
  "  try: return act()",
  "  except OSError as error: return errno.errorcode[error.errno]",
  "os.makedirs('/root/limits', exist_ok=True); os.chdir('/root/limits')",
].join("\n");

/** What the table says of it, a Python expression, and its value in a gVisor sandbox. */
const limits: readonly [row: string, expression: string, found: string][] = [
  ["counts the CPUs", "os.cpu_count() >= 2 and len(os.sched_getaffinity(0)) >= 2", "True"],
  ["calls io_uring", "call(425, 8, buffer(256))", "ENOSYS"],
  ["opens `/dev/fuse`", "attempt(lambda: os.open('/dev/fuse', os.O_RDWR))", "ENOENT"],
  [
    "opens `/dev/loop-control`",
    "[attempt(lambda: os.open(f'/dev/{n}', os.O_RDWR)) for n in ('loop-control', 'net/tun', 'kvm')]",
    "['ENOENT', 'ENOENT', 'ENOENT']",
  ],
  ["opens a file with `O_TMPFILE`", "attempt(lambda: os.open('.', os.O_TMPFILE | os.O_RDWR))", "ENOTSUP"],
  [
    "makes a hard link of a socket",
    "(socket.socket(socket.AF_UNIX).bind('socket'), attempt(lambda: os.link('socket', 'link')))[1]",
    "ENOTSUP",
  ],
  [
    "makes a FIFO",
    "(os.mkdir('of-fifo'), os.utime('of-fifo', (1, 1)), os.mkfifo('of-fifo/fifo'), os.stat('of-fifo').st_mtime)[3]",
    "1.0",
  ],
  [
    "sets a file's time before 1970",
    "(open('of-time', 'w').close(), [(os.utime('of-time', (t, t)), os.stat('of-time').st_mtime == t)[1] for t in (-1, -1.25, 9300000000)])[1]",
    "[True, False, False]",
  ],
  [
    "opens a symbolic link with `O_DIRECTORY`",
    "(os.symlink('/etc', 'to-etc'), attempt(lambda: os.open('to-etc', os.O_DIRECTORY | os.O_NOFOLLOW)) not in ('ELOOP', 'ENOTDIR'))[1]",
    "True",
  ],
  [
    "punches a hole",
    "(open('full', 'wb').write(b'x' * 8192), call((285, 47), os.open('full', os.O_RDWR), 3, ctypes.c_long(0), ctypes.c_long(4096)))[1]",
    "ENOTSUP",
  ],
  ["calls `userfaultfd`", "call((323, 282), 0)", "ENOSYS"],
  ["calls `perf_event_open`", "call((298, 241), buffer(128), 0, -1, -1, 0)", "ENODEV"],
  ["calls `name_to_handle_at`", "call((303, 264), -100, b'/etc', buffer(200), buffer(8), 0)", "ENOTSUP"],
  ["restricts itself by Landlock", "call(444, None, 0, 1)", "ENOSYS"],
  ["watches by fanotify", "call((300, 262), 0, 0)", "ENOSYS"],
  ["calls `mount_setattr`", "call(442, -100, b'/', 0, None, 0)", "ENOSYS"],
  [
    "reads a terminal's master",
    "attempt(lambda: os.read(os.open('/dev/ptmx', os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY), 1))",
    "EIO",
  ],
  [
    "asks a terminal's master",
    "(lambda p: __import__('time').sleep(2) or os._exit(0) if p[0] == 0 else attempt(lambda: os.tcgetpgrp(p[1])))(__import__('pty').fork())",
    "ENOTTY",
  ],
];

onGvisor.each(limits)("a program that %s is limited as the table says", async (_row, expression, found) => {
  const { stdout, stderr } = await client.exec(box, ["python3", "-c", `${prelude}\nprint(${expression})`]);
  expect([stdout, stderr]).toEqual([`${found}\n`, ""]);
});

/** As bubblewrap does it: RTM_NEWADDR with NLM_F_CREATE and NLM_F_EXCL, then IFF_UP; with the errors of the answers. */
const ownNetwork = `
import socket, struct
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); s.bind((0, 0)); lo = socket.if_nametoindex("lo")
def ask(kind, flags, body):
  s.send(struct.pack("IHHII", 16 + len(body), kind, 5 | flags, 1, 0) + body)
  return struct.unpack("i", s.recv(4096)[16:20])[0]
address = lambda kind: struct.pack("HH4s", 8, kind, socket.inet_aton("127.0.0.1"))
print(ask(20, 0x600, struct.pack("BBBBI", 2, 8, 0x80, 254, lo) + address(2) + address(1)))
print(ask(16, 0, struct.pack("BBHiII", 0, 0, 0, lo, 1, 1)))
t = socket.socket(); t.bind(("127.0.0.1", 0)); t.listen(); socket.create_connection(t.getsockname(), 2)
`;
test.each(["root", "user"])("%s can make a network namespace with a loopback address", async (user) => {
  const cmd = ["unshare", "-Urn", "python3", "-c", ownNetwork];
  const { stdout, stderr } = await client.exec(box, cmd, { user });
  expect([stdout, stderr]).toEqual(["0\n0\n", ""]);
});

/** Needs a sandbox of its own. */
const filling = "fills far more than the sandbox's memory in one call";
onGvisor(`a program that ${filling} ends the machine, which says so`, async () => {
  const small = await client.create({ cpus: 1, memory_mb: 256 });
  const dd = client.exec(small, ["dd", "if=/dev/zero", "of=/dev/null", "bs=1900M", "count=1"]);
  await dd.catch(() => undefined);
  const error = async (): Promise<string> =>
    (await client.gateway<{ sandbox: { error_message: string } }>("GetSandbox", { id: small.id })).sandbox
      .error_message;
  expect(await eventually(error, (text) => text !== "", 20_000)).toContain("the machine ran out of memory");
  expect((await client.exec(small, ["true"])).ok).toBe(true);
  await client.session.discard(small.id);
});

test("every row of the table is tried", () => {
  const table = readFileSync(new URL("../../docs/gvisor-limits.md", import.meta.url), "utf8");
  // What is only written down, below the next heading, was tried by hand.
  const [limited = ""] = table.split("\n## ");
  const rows = limited
    .split("\n")
    .filter((line) => line.startsWith("| ") && !/^\| (?:a program that|-)/.test(line));
  // The last one has tests of its own: familiar-programs.test.ts.
  const tried = [...limits.map(([row]) => row), filling];
  const untried = rows.slice(0, -1).filter((line) => !tried.some((row) => line.includes(row)));
  expect(untried).toEqual([]);
  expect(rows).toHaveLength(tried.length + 1);
});
