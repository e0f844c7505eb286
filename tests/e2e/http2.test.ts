// One connection of HTTP/2 to a sandbox: many requests at once, large bodies, a terminal's WebSocket, and servers that speak HTTP/2.
import { type ClientHttp2Session, type ClientHttp2Stream, connect } from "node:http2";
import { connect as connectTls } from "node:tls";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { eventually, sharedClient } from "../fixtures/client.ts";

const client = sharedClient();
const { target } = inject("service");
let sandbox: TestSandbox;
let session: ClientHttp2Session;

const opened: ClientHttp2Session[] = [];

async function connectTo(domain: string): Promise<ClientHttp2Session> {
  const { edgeHost: host, edgePort: port, ca } = target;
  const [servername = ""] = domain.split(":");
  const made = connect(`https://${domain}`, {
    createConnection: () => connectTls({ host, port, ca, servername, ALPNProtocols: ["h2"] }),
  });
  opened.push(made);
  await new Promise((resolve, reject) => made.once("remoteSettings", resolve).once("error", reject));
  return made;
}

interface Answer {
  status: number;
  headers: Record<string, unknown>;
  body: Buffer;
}

const begin = (path: string, headers: Record<string, string> = {}, over = session): ClientHttp2Stream =>
  over.request({ ":path": path, authorization: `Bearer ${sandbox.token}`, ...headers });

async function answerOf(stream: ClientHttp2Stream): Promise<Answer> {
  const head = new Promise<Record<string, unknown>>((resolve, reject) => {
    stream.once("response", resolve).once("error", reject);
  });
  const headers = await head;
  const parts: Buffer[] = [];
  for await (const part of stream) parts.push(part as Buffer);
  return { status: Number(headers[":status"]), headers, body: Buffer.concat(parts) };
}

async function exec(cmd: string[]): Promise<Answer> {
  const stream = begin("/v1/exec", { ":method": "POST", "content-type": "application/json" });
  stream.end(JSON.stringify({ cmd }));
  return answerOf(stream);
}

beforeAll(async () => {
  sandbox = await client.create();
  session = await connectTo(sandbox.domain);
});
afterAll(() => {
  for (const one of opened) one.destroy();
});

test("commands run beside seven that are not over", async () => {
  const waiting = Array.from({ length: 7 }, () =>
    exec(["sh", "-c", "while ! test -e /tmp/go; do sleep 0.1; done"]),
  );
  const { status, body } = await exec(["touch", "/tmp/go"]);
  expect(status, body.toString()).toBe(200);
  for (const answer of await Promise.all(waiting))
    expect(JSON.parse(answer.body.toString())).toMatchObject({ exit_code: 0 });
});

test("a large file goes in and comes out as it was", async () => {
  const bytes = Buffer.alloc(8 << 20, "0123456789abcde");
  const put = begin("/v1/files?path=/root/large", { ":method": "PUT" });
  put.end(bytes);
  expect((await answerOf(put)).status).toBe(200);
  const got = await answerOf(begin("/v1/files?path=/root/large"));
  expect(got.status).toBe(200);
  expect(got.body.equals(bytes)).toBe(true);
});

test("a terminal is attached by a WebSocket over HTTP/2", async () => {
  const started = await client.call(sandbox, "POST", "/v1/processes", {
    json: { cmd: ["sh", "-c", "echo over http2; sleep 60"], tty: { cols: 80, rows: 24 } },
  });
  const { process_id } = JSON.parse(started.body.toString()) as { process_id: string };
  const stream = begin(`/v1/processes/${process_id}/attach`, {
    ":method": "CONNECT",
    ":protocol": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-protocol": "v5.channel.k8s.io",
  });
  let seen = "";
  stream.on("data", (part: Buffer) => (seen += part.toString("latin1")));
  const [headers] = (await new Promise<unknown[]>((resolve, reject) => {
    stream.once("response", (...all: unknown[]) => resolve(all)).once("error", reject);
  })) as [Record<string, unknown>];
  expect(headers[":status"]).toBe(200);
  await eventually(
    () => seen,
    (text) => text.includes("over http2"),
  );
  expect(seen).toContain("over http2");
  stream.close();
});

// Answers every request with its head in HPACK's static table, without HTTP/1.1.
const server = `
import socket, threading
def frame(kind, flags, stream, body=b""):
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
def serve(one):
    file = one.makefile("rb")
    one.sendall(frame(4, 0, 0))
    if file.read(24) != b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n": return one.close()
    while head := file.read(9):
        file.read(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        if kind == 4 and not flags & 1: one.sendall(frame(4, 1, 0))
        if kind == 1: one.sendall(frame(1, 4, stream, b"\\x88") + frame(0, 1, stream, b"of HTTP/2 alone"))
listener = socket.create_server(("127.0.0.1", 8000))
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
`;

test("a port's server that speaks HTTP/2 alone answers clients of both versions", async () => {
  await client.call(sandbox, "POST", "/v1/files?path=/root/server.py", { body: Buffer.from(server) });
  const definition = { cmd: "python3", args: ["/root/server.py"], health_port: 8000 };
  await client.call(sandbox, "PUT", "/v1/services/h2c", { json: definition });
  await client.call(sandbox, "POST", "/v1/services/h2c/start");
  const name = `8000-${sandbox.domain}`;
  const newer = await answerOf(begin("/", {}, await connectTo(name)));
  expect([newer.status, newer.body.toString()]).toEqual([200, "of HTTP/2 alone"]);
  const headers = { authorization: `Bearer ${sandbox.token}` };
  const older = await client.session.wire.dataPlane(name, { method: "GET", path: "/", headers });
  expect([older.status, older.body.toString()]).toEqual([200, "of HTTP/2 alone"]);
});
