// What passes between edge, host and agent, attacked from inside, where users share the agent's network: its port taken over, its
// packets read, its agent asked without a key. Each attack says what became of it, so that one that is never sent fails too.
import { connect } from "node:net";
import { defaults } from "@cloche/protocol";
import { beforeAll, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";
import { channelOf } from "../fixtures/inner-channel.ts";
import { inventory } from "../fixtures/inventory.ts";
import { runCommand } from "../fixtures/service.ts";

const { home, runtime } = inject("service");
const client = sharedClient();
const plainPort = 8_070;
const plainServer =
  'import socket,sys\ns=socket.create_server(("0.0.0.0",int(sys.argv[1])))\nwhile True:\n c,_=s.accept(); c.recv(4096); c.sendall(b"ok"); c.close()';
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create();
});

const own = [
  "import fcntl, select, socket, struct, subprocess, sys, time, threading, os",
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

/** From the host, without the channel; what was answered, or "" where nobody did. */
const sayPlainly = (host: string, text: string): Promise<string> =>
  new Promise((resolve) => {
    const socket = connect({ host, port: plainPort, timeout: 5_000 }, () => socket.write(text));
    let said = "";
    socket.on("data", (chunk) => (said += chunk.toString()));
    socket.on("timeout", () => socket.destroy());
    socket.on("error", () => undefined);
    socket.on("close", () => resolve(said));
  });

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

/** Opens every kind of raw socket, and says how many; then all that they heard in `seconds`. */
const sniff = [
  "def open_raw(family, kind, proto):",
  "  try: s = socket.socket(family, kind, proto); s.settimeout(0.2); return s",
  "  except OSError as e: return None",
  "ears = [open_raw(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)), open_raw(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)), open_raw(socket.AF_INET, socket.SOCK_RAW, 6)]",
  "print('tried', len(ears), 'opened', sum(1 for e in ears if e), flush=True)",
  "until, heard = time.time() + 6, b''",
  "while time.time() < until and any(ears):",
  "  for e in select.select([e for e in ears if e], [], [], 0.2)[0]:",
  "    try: heard += e.recv(65536)",
  "    except OSError: pass",
  "print(heard.hex())",
];
const heardIn = (stdout: string): string =>
  Buffer.from(stdout.trim().split("\n").at(-1) ?? "", "hex").toString("latin1");
const secrets = (): string[] => [
  sandbox.token,
  "/v1/store",
  "GuestService",
  "controlSecret",
  "eyJ",
  "Bearer",
];

test("nobody inside can read the machine's link, in a user namespace of his own either", async () => {
  const program = [...own, ...sniff].join("\n");
  // Only in a network namespace of his own does the third open any: nothing of the machine's passes there.
  for (const [prefix, opened] of [
    [[], "opened 0"],
    [["unshare", "-U", "-r"], "opened 0"],
    [["unshare", "-U", "-r", "-n"], "opened 3"],
  ] as const) {
    const listening = client.exec(sandbox, [...prefix, "python3", "-c", program, String(defaults.agentPort)]);
    for (let i = 0; i < 3; i += 1) expect(new Set(await traffic())).toEqual(new Set([200]));
    const { stdout, stderr } = await listening;
    expect(stdout, stderr).toContain(`tried 3 ${opened}`);
    for (const secret of secrets()) expect(heardIn(stdout), prefix.join(" ")).not.toContain(secret);
  }
});

// As who found a way to read the link all the same: from the host, in the machine's network namespace. A VM's link is a tap.
if (runtime === "gvisor")
  test("packets read on the machine's link hold no token and no request", async () => {
    await client.shell(
      sandbox,
      `setsid python3 -c '${plainServer}' ${plainPort} >/dev/null 2>&1 </dev/null &`,
    );
    const { host } = channelOf(home, sandbox.id);
    const said = await eventually(
      () => sayPlainly(host, "hello"),
      (answer) => answer === "ok",
    );
    expect(said).toBe("ok");
    const program = [...own, ...sniff].join("\n");
    const listening = inventory(home)
      .namespaces.filter((name) => name.startsWith("cl-"))
      .map((name) => runCommand("ip", ["netns", "exec", name, "python3", "-c", program, "0"]));
    expect(listening.length).toBeGreaterThan(0);
    let isOver = false;
    const all = Promise.all(listening).finally(() => (isOver = true));
    // All the while: when each of them has begun to listen nobody tells.
    while (!isOver) {
      expect(await sayPlainly(host, "said plainly")).toBe("ok");
      expect(new Set(await traffic())).toEqual(new Set([200]));
    }
    const heard = (await all).map(({ stdout }) => heardIn(stdout)).join("");
    // What does pass in plain text is heard.
    expect(heard).toContain("said plainly");
    for (const secret of secrets()) expect(heard).not.toContain(secret);
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
