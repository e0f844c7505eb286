// What passes between edge, host and agent, attacked from inside, where users share the agent's network: its port taken over, its
// packets read, its agent asked without a key. Each attack says what became of it, so that one that is never sent fails too.
import { defaults } from "@cloche/protocol";
import { beforeAll, expect, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create();
});

const own = [
  "import fcntl, socket, struct, subprocess, sys, time, threading, os",
  "port = int(sys.argv[1])",
  "def eth0():",
  "  text = subprocess.run(['ip', '-4', '-o', 'addr', 'show', 'eth0'], capture_output=True, text=True).stdout",
  "  return text.split()[3].split('/')[0]",
];
const python = (lines: string[], user = "root") =>
  client.exec(sandbox, ["python3", "-c", [...own, ...lines].join("\n"), String(defaults.agentPort)], {
    user,
  });
/** New connections of the edge, and one of the host: enough that a listener beside the agent's would get some. */
const traffic = async (): Promise<number[]> => {
  const calls = Array.from({ length: 24 }, () =>
    client.call(sandbox, "GET", "/v1/store").then((a) => a.status),
  );
  calls.push(client.call(sandbox, "POST", "/v1/checkpoint", { json: {} }).then((answer) => answer.status));
  return Promise.all(calls);
};

const hijack = [
  "def attempt(address, options):",
  "  s = socket.socket()",
  "  try:",
  "    for name, value in options: s.setsockopt(socket.SOL_SOCKET, name, value)",
  "    s.bind((address, port)); s.listen(128)",
  "  except OSError: s.close(); return 'refused'",
  "  held.append(s); threading.Thread(target=take, args=(s,), daemon=True).start()",
  "  return 'bound'",
  "def take(s):",
  "  while True:",
  "    c, _ = s.accept(); c.settimeout(2)",
  "    try: open('/tmp/taken', 'ab').write(c.recv(65536))",
  "    except OSError: pass",
  "held = []",
  "addr, many, device = (socket.SO_REUSEADDR, 1), (socket.SO_REUSEPORT, 1), (socket.SO_BINDTODEVICE, b'eth0')",
  "ways = [[], [addr], [many], [addr, many], [addr, device], [addr, many, device]]",
  "said = [attempt(a, w) for a in (eth0(), '0.0.0.0', '127.0.0.1') for w in ways]",
  "print(' '.join(said), flush=True)",
  "pid = os.fork() if held else 1",
  "if pid == 0: time.sleep(20)",
];

for (const user of ["root", "nobody"]) {
  test(`${user} cannot listen on the agent's port, whatever the address and options`, async () => {
    const attempts = python(hijack, user);
    expect(await traffic()).toEqual(expect.arrayContaining([200]));
    const { stdout, stderr } = await attempts;
    expect(stdout.trim().split(" "), stderr).toHaveLength(18);
    expect(new Set(stdout.trim().split(" "))).toEqual(new Set(["refused"]));
    expect(new Set(await traffic())).toEqual(new Set([200]));
  });
}

test("the port that was the agent's once is the user's", async () => {
  const { stdout } = await python([
    "s = socket.socket(); s.bind(('0.0.0.0', 4070)); s.listen()",
    "socket.create_connection((eth0(), 4070)); print('mine')",
  ]);
  expect(stdout).toBe("mine\n");
});

test("packets read on the machine's link hold no token, no secret and no request", async () => {
  // Its own user namespace gives every capability there; a packet of its own shows whether what it opened hears anything.
  const sniff = [
    "def open_raw(family, kind, proto):",
    "  try: s = socket.socket(family, kind, proto); s.settimeout(0.2); return s",
    "  except OSError as e: print('refused', e.errno); return None",
    "ears = [open_raw(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)), open_raw(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)), open_raw(socket.AF_INET, socket.SOCK_RAW, 6)]",
    "print('tried', len(ears), flush=True)",
    "until, heard = time.time() + 6, b''",
    "while time.time() < until and any(ears):",
    "  for e in ears:",
    "    try: heard += e.recv(65536) if e else b''",
    "    except OSError: pass",
    "print(heard.hex())",
  ];
  const program = [...own, ...sniff].join("\n");
  for (const prefix of [[], ["unshare", "-U", "-r"], ["unshare", "-U", "-r", "-n"]]) {
    const cmd = [...prefix, "python3", "-c", program, String(defaults.agentPort)];
    const listening = client.exec(sandbox, cmd);
    for (let i = 0; i < 3; i += 1) expect(new Set(await traffic())).toEqual(new Set([200]));
    const { stdout, stderr } = await listening;
    expect(stdout, stderr).toContain("tried 3");
    const heard = Buffer.from(stdout.trim().split("\n").at(-1) ?? "", "hex").toString("latin1");
    for (const secret of [sandbox.token, "Bearer", "/v1/store", "GuestService", "controlSecret"])
      expect(heard, prefix.join(" ")).not.toContain(secret);
  }
});

test("the agent answers nobody inside: not without the key, not with what a client knows", async () => {
  const { stdout } = await python([
    "import ssl",
    "plain = socket.create_connection(('127.0.0.1', port)); plain.settimeout(5)",
    "plain.sendall(b'GET /healthz HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n')",
    "try: said = plain.recv(4096)",
    "except OSError: said = b''",
    "print(b'HTTP' in said)",
    "context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE",
    "try: context.wrap_socket(socket.create_connection((eth0(), port))); print('let in')",
    "except (ssl.SSLError, OSError): print('refused')",
  ]);
  expect(stdout).toBe("False\nrefused\n");
});
