// What a sandbox must not reach or do: the host, its neighbours, the service itself.
import { createSocket } from "node:dgram";
import { createServer } from "node:http";
import { networkInterfaces } from "node:os";
import { afterAll, beforeAll, describe, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const { target } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
let neighbour: TestSandbox;
// A server on every address of this machine: reachable for the host, never for a sandbox.
const bait = createServer((_, response) => response.end("bait"));
let baitPort = 0;
beforeAll(async () => {
  [sandbox, neighbour] = await Promise.all([client.create(), client.create()]);
  await new Promise<void>((resolve) => bait.listen(0, "0.0.0.0", resolve));
  baitPort = (bait.address() as { port: number }).port;
});
afterAll(() => {
  bait.close();
});

/** Which of the addresses answer curl, seen from inside. All at once: each may wait for an answer that never comes. */
const reached = (urls: readonly string[]): Promise<string> => {
  const line = urls.map((url) => `(curl -sk -m 5 -o /dev/null ${url} && echo "reached ${url}") &`).join(" ");
  return client.shell(sandbox, `${line} wait; echo done`);
};
/** A web server at port 8000 of the sandbox's own, once it answers there. */
const serve = (inside: TestSandbox): Promise<string> =>
  client.shell(
    inside,
    "cd /tmp && (python3 -m http.server 8000 > /dev/null 2>&1 &); until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.2; done; echo up",
  );

describe("the network of a sandbox", () => {
  test("does not reach the host on any of its addresses, nor metadata and private ones", async () => {
    const addresses = Object.values(networkInterfaces())
      .flatMap((list) => list ?? [])
      .filter(({ family }) => family === "IPv4")
      .map(({ address }) => address);
    expect(addresses).toContain("127.0.0.1");
    expect(await (await fetch(`http://127.0.0.1:${baitPort}/`)).text()).toBe("bait");
    const gateway = (await client.shell(sandbox, "ip route show default | cut -d' ' -f3")).trim();
    expect(gateway).toMatch(/^\d+\.\d+\.\d+\.\d+$/);
    const urls = [...new Set([...addresses, gateway])].map((address) => `http://${address}:${baitPort}/`);
    for (const port of [22, target.edgePort, Number(new URL(target.gatewayUrl).port)])
      urls.push(`http://${gateway}:${port}/`);
    for (const address of ["169.254.169.254", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1"])
      urls.push(`http://${address}/`);
    expect(await reached(urls)).toBe("done\n");
  });

  test("does not reach its neighbour", async () => {
    expect(await serve(neighbour)).toBe("up\n");
    const shown = await client.shell(neighbour, "ip -4 -o addr show eth0");
    const addresses = shown.match(/\d+\.\d+\.\d+\.\d+/g) ?? [];
    expect(addresses).not.toEqual([]);
    // Inside, all machines have one address; a neighbour's answer under it would be the neighbour's.
    expect(await reached(addresses.map((address) => `http://${address}:8000/`))).toBe("done\n");
  });

  test("sends no raw packet, forged address or forged ARP to anybody", async () => {
    const received: string[] = [];
    const ear = createSocket("udp4").on("message", (message) => received.push(message.toString()));
    await new Promise<void>((resolve) => ear.bind(0, "0.0.0.0", resolve));
    const { port } = ear.address();
    const hosts = Object.values(networkInterfaces())
      .flatMap((list) => list ?? [])
      .filter(({ family }) => family === "IPv4")
      .map(({ address }) => address);
    const attack = [
      "import socket, struct, sys, subprocess",
      "port, hosts = int(sys.argv[1]), sys.argv[2].split(',')",
      "gateway = subprocess.run(['ip', 'route', 'show', 'default'], capture_output=True, text=True).stdout.split()[2:3]",
      "def attempt(act):",
      "  try: act()",
      "  except OSError: pass",
      "def plain(to): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'plain', (to, port))",
      "def forged(source, to):",
      "  raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)",
      "  udp = struct.pack('!HHHH', 53, port, 14, 0) + b'forged'",
      "  ip = struct.pack('!BBHHHBBH4s4s', 69, 0, 20 + len(udp), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(to))",
      "  raw.sendto(ip + udp, (to, 0))",
      "def arp():",
      "  link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))",
      "  link.bind(('eth0', 0))",
      "  me = link.getsockname()[4]",
      "  body = struct.pack('!HHBBH', 1, 0x0800, 6, 4, 2) + me + socket.inet_aton(gateway[0]) + b'\\xff' * 6 + socket.inet_aton('10.0.0.1')",
      "  link.send(b'\\xff' * 6 + me + b'\\x08\\x06' + body)",
      "for to in hosts + gateway + ['255.255.255.255', '224.0.0.1']:",
      "  attempt(lambda: plain(to))",
      "  for source in hosts + gateway + ['8.8.8.8', '127.0.0.1']: attempt(lambda: forged(source, to))",
      "attempt(arp)",
      "attempt(lambda: [socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).sendto(b'\\x05\\x01' + b'\\0' * 26, (to, 0)) for to in hosts])",
      "print('tried')",
    ].join("\n");
    const result = await client.exec(sandbox, ["python3", "-c", attack, String(port), hosts.join(",")]);
    expect(result).toMatchObject({ stdout: "tried\n" });
    // What would arrive has arrived when the host's own packet, sent afterwards, is there.
    createSocket("udp4").unref().send("own", port, "127.0.0.1");
    await eventually(
      () => received,
      (all) => all.includes("own"),
    );
    ear.close();
    expect(received).toEqual(["own"]);
    expect((await client.exec(neighbour, ["echo", "fine"])).stdout).toBe("fine\n");
  });

  test("does not reach a neighbour, or itself, through the edge", async () => {
    const gateway = (await client.shell(sandbox, "ip route show default | cut -d' ' -f3")).trim();
    const addresses = [gateway, target.edgeHost === "localhost" ? "127.0.0.1" : target.edgeHost];
    const ways = [neighbour, sandbox].flatMap(({ domain }) => {
      const [host = "", port = "443"] = domain.split(":");
      const by = addresses.map((address) => `--resolve ${host}:${port}:${address}`);
      // Without: by the name server.
      return [...by, ""].map((way) => `${way} https://${domain}/v1/files/list?path=/`);
    });
    expect(await reached(ways)).toBe("done\n");
  });

  test("gets from its name server no way to the service, and cannot break it", async () => {
    const attack = [
      "import os, socket, struct",
      "server = [l.split()[1] for l in open('/etc/resolv.conf') if l.startswith('nameserver')][0]",
      "def ask(packet, wait=True):",
      "  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.sendto(packet, (server, 53))",
      "  try: return s.recv(65535) if wait else b''",
      "  except OSError: return b''",
      "def query(name, kind=1):",
      "  labels = b''.join(bytes([len(l)]) + l.encode() for l in name.split('.'))",
      "  return os.urandom(2) + b'\\x01\\0\\0\\x01' + b'\\0' * 6 + labels + b'\\0' + struct.pack('!HH', kind, 1)",
      "for i in range(300): ask(os.urandom(i % 100), wait=False)",
      "for i in range(100): ask(query('localhost')[:i % 30] + b'\\xc0\\x0c' * 20, wait=False)",
      "for kind in (251, 252, 255): ask(query('localhost', kind), wait=False)",
      "for name in ('localhost', 'metadata.google.internal', 'cloche.localhost', socket.gethostname()):",
      "  answer = ask(query(name))",
      "  private = [a for a in ('127.0.0.1', '169.254.169.254', '10.0.0.1') if socket.inet_aton(a) in answer[12:]]",
      "  if private and name != 'localhost': print('private', name, private)",
      "print('answered' if len(ask(query('localhost'))) >= 12 else 'silent')",
    ].join("\n");
    expect((await client.exec(sandbox, ["python3", "-c", attack])).stdout).toBe("answered\n");
  });

  test("serves itself on its own loopback", async () => {
    expect(await serve(sandbox)).toBe("up\n");
    expect(await reached(["http://127.0.0.1:8000/"])).toBe("reached http://127.0.0.1:8000/\ndone\n");
  });
});

describe("the machine of a sandbox", () => {
  test("shows none of the host's and the agent's files, processes and names", async () => {
    expect(await client.shell(sandbox, "cat /etc/os-release")).toContain("Debian");
    expect(await client.shell(sandbox, "ls /work /var/lib/cloche /mnt/disk 2>/dev/null || true")).toBe("");
    const processes = await client.shell(sandbox, "ps -eo args=");
    expect(processes).not.toMatch(/agent|vitest|runsc|qemu|packages\/service/);
  });

  test("hides the agent's memory, files and secrets from every user", async () => {
    const line =
      "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -ciE 'secret|bearer|cloche' || true";
    expect((await client.shell(sandbox, line)).trim()).toBe("0");
    const asNobody = await client.exec(sandbox, ["sh", "-c", "cat /etc/shadow; ls /root"], {
      user: "nobody",
    });
    expect(asNobody.ok).toBe(false);
  });

  test("survives its own rm -rf; its files can still be read, and its neighbours go on", async () => {
    const victim = await client.create();
    await client.exec(victim, ["sh", "-c", "rm -rf /usr /bin /lib /lib64 /etc 2>/dev/null"]);
    expect((await client.call(victim, "GET", "/v1/files/list?path=/")).status).toBe(200);
    expect(await client.exec(victim, ["/no-shell-any-more"])).toMatchObject({ exit_code: 127 });
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    await client.session.discard(victim.id);
  });

  test("survives a fork bomb, and so do its neighbours", async () => {
    // It may well fail, and while nobody waits for it yet.
    const bomb = client
      .exec(neighbour, ["sh", "-c", "b() { b | b & }; b; sleep 5"], { timeout_ms: 5_000 })
      .catch(() => undefined);
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    await bomb;
    expect((await client.exec(sandbox, ["echo", "fine"])).stdout).toBe("fine\n");
    // Itself it may harm, but not for good.
    const after = await eventually(
      () => client.exec(neighbour, ["echo", "fine"]).catch(() => undefined),
      (result) => result?.stdout === "fine\n",
    );
    expect(after?.stdout).toBe("fine\n");
    // What of the bomb outlived its exec must not slow down all that follows.
    await client.session.discard(neighbour.id);
  });

  test("cannot write more than its disk, and goes on with what it has", async () => {
    const small = await client.create({ disk_mb: 1_024 });
    // More than a sixteenth of it would only take longer to write.
    const most = "fallocate -l $(($(df -B1 --output=avail / | tail -1) - 60000000)) /root/most";
    const result = await client.exec(small, [
      "sh",
      "-c",
      `${most}; head -c 3000M /dev/zero > /root/big; sync`,
    ]);
    expect(result.stderr).toContain("No space left");
    const write = await client.call(small, "POST", "/v1/files?path=/root/x", {
      body: Buffer.alloc(1_000_000),
    });
    expect([200, 507]).toContain(write.status);
    expect(await client.shell(small, "rm /root/big && echo ok > /root/y && cat /root/y")).toBe("ok\n");
    await client.session.discard(small.id);
  });
});
