/**
 * One tenant of a service who does harm, as a thread of its own (second-tenant.test.ts): a server in a sandbox, and
 * clients of the edge and of the endpoint for E2B's clients. Goes on until it is terminated; counts bytes in `moved`.
 */
import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { Duplex } from "node:stream";
import { connect as connectTls } from "node:tls";
import { type MessagePort, parentPort, workerData } from "node:worker_threads";

export type Harm =
  | "json"
  | "chunks-up"
  | "frames-up"
  | "windows"
  | "chunks-down"
  | "early"
  | "messages"
  | "signatures"
  | "lists";
export interface Orders {
  harm: Harm;
  port: number;
  tlsPort: number;
  e2bPort: number;
  gatewayPort: number;
  ca: string;
  sandboxId: string;
  baseDomain: string;
  authorization: string;
  moved: ArrayBufferLike;
}

const orders = workerData as Orders;
const moved = new Int32Array(orders.moved);
const connections = 2;
const jsonConnections = 8;
/** Connections with lists that are not read, and lists on each. */
const listConnections = 100;
const pipelinedLists = 20;

/** Sends `bytes` again and again, as fast as they are taken. */
function sendForEver(socket: Socket, bytes: Buffer): void {
  const send = (): void => {
    while (!socket.destroyed && socket.write(bytes));
  };
  socket.on("drain", send);
  send();
}

const chunksOfOneByte = Buffer.from("1\r\na\r\n".repeat(10_000));
const earlyAnswers = Buffer.from("HTTP/1.1 103 X\r\n\r\n".repeat(4_000));
/** A WebSocket message of one byte, masked as a client's is. */
const message = Buffer.from([0x82, 0x81, 0, 0, 0, 0, 0x61]);
const messagesSent = 20_000;

/** The agent and a server behind it: a tunnel, then an answer by path. */
function serve(): Promise<number> {
  const server = createServer({ noDelay: true }, (socket) => {
    socket.on("error", () => undefined);
    let isOver = false;
    socket.on("data", (data) => {
      Atomics.add(moved, 0, data.length);
      if (isOver) return;
      const head = data.toString("latin1");
      if (head.includes("Upgrade: cloche-port"))
        return void socket.write(
          "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: cloche-port\r\n\r\n",
        );
      isOver = true;
      if (head.includes("/chunks")) {
        socket.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        sendForEver(socket, chunksOfOneByte);
      } else if (head.includes("/early")) sendForEver(socket, earlyAnswers);
      else if (head.includes("/messages")) {
        Atomics.store(moved, 0, 0);
        socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
      }
    });
  });
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => resolve((server.address() as { port: number }).port));
  });
}

function counted(socket: Socket): Socket {
  socket.on("error", () => undefined);
  socket.on("data", (data) => void Atomics.add(moved, 0, data.length));
  return socket;
}

const head = (method: string, path: string, ...more: string[]): string =>
  [`${method} ${path} HTTP/1.1`, `Host: ${orders.baseDomain}`, ...more, "", ""].join("\r\n");

/** Asks again on a new connection whenever one ends. */
function ask(text: string, body?: Buffer): void {
  const socket = counted(connect({ port: orders.port, host: "127.0.0.1", noDelay: true }));
  socket.write(text);
  if (body !== undefined) socket.write(body);
  socket.on("close", () => ask(text, body));
}

const atPort = (path: string): string => `/sandboxes/${orders.sandboxId}/ports/8000${path}`;
const token = `Authorization: ${orders.authorization}`;
const objects = (count: number): Buffer =>
  Buffer.from(`{"checkpoint_id":"ckpt-x","timeout_secs":0,"a":[${"{},".repeat(count)}{}]}`);

function frameOf(type: number, flags: number, streamId: number, payload: Buffer): Buffer {
  const bytes = Buffer.alloc(9 + payload.length);
  bytes.writeUIntBE(payload.length, 0, 3);
  bytes[3] = type;
  bytes[4] = flags;
  bytes.writeUInt32BE(streamId, 5);
  payload.copy(bytes, 9);
  return bytes;
}
const field = (name: string, value: string): Buffer =>
  Buffer.concat([
    Buffer.of(0, name.length),
    Buffer.from(name),
    value.length < 127 ? Buffer.of(value.length) : lengthOf(value.length),
    Buffer.from(value),
  ]);
function lengthOf(length: number): Buffer {
  const bytes = [127];
  let rest = length - 127;
  while (rest >= 128) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  return Buffer.from([...bytes, rest]);
}

/** An upload in DATA frames of one byte, as far as the windows allow. */
function smallDataFrames(): void {
  const socket = counted(connect({ port: orders.port, host: "127.0.0.1", noDelay: true }));
  const fields = {
    ":method": "POST",
    ":scheme": "http",
    ":path": `/sandboxes/${orders.sandboxId}/v1/files`,
    ":authority": orders.baseDomain,
    authorization: orders.authorization,
  };
  const block = Buffer.concat(Object.entries(fields).map(([name, value]) => field(name, value)));
  socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  socket.write(frameOf(4, 0, 0, Buffer.alloc(0)));
  socket.write(frameOf(1, 4, 1, block));
  const windows = { session: 65_535, stream: 65_535 };
  const many = 5_000;
  const one = frameOf(0, 0, 1, Buffer.of(97));
  const frames = Buffer.concat(Array.from({ length: many }, () => one));
  const send = (): void => {
    while (Math.min(windows.session, windows.stream) >= many && !socket.destroyed) {
      windows.session -= many;
      windows.stream -= many;
      Atomics.add(moved, 0, many);
      if (!socket.write(frames)) return;
    }
  };
  let rest = Buffer.alloc(0);
  socket.on("data", (data) => {
    rest = Buffer.concat([rest, data]);
    while (rest.length >= 9 && rest.length >= 9 + rest.readUIntBE(0, 3)) {
      const length = rest.readUIntBE(0, 3);
      if (rest[3] === 8) windows[rest.readUInt32BE(5) === 0 ? "session" : "stream"] += rest.readUInt32BE(9);
      rest = rest.subarray(9 + length);
    }
    send();
  });
  socket.on("drain", send);
  send();
}

/** An HTTP/2 connection that brings nothing but window updates, and a new one when it ends. */
function windowUpdates(): void {
  const socket = counted(connect({ port: orders.port, host: "127.0.0.1", noDelay: true }));
  socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  socket.write(frameOf(4, 0, 0, Buffer.alloc(0)));
  socket.on("close", windowUpdates);
  const one = frameOf(8, 0, 0, Buffer.of(0, 0, 0, 1));
  const frames = Buffer.concat(Array.from({ length: 5_000 }, () => one));
  const send = (): void => {
    do Atomics.add(moved, 0, 1);
    while (!socket.destroyed && socket.write(frames));
  };
  socket.on("drain", send);
  send();
}

const harms: Record<Exclude<Harm, "messages">, () => void> = {
  json() {
    const body = objects(700_000);
    for (let i = 0; i < jsonConnections; i += 1)
      ask(
        head(
          "POST",
          `/sandboxes/${orders.sandboxId}/v1/checkpoint/wait`,
          token,
          "Content-Type: application/json",
          `Content-Length: ${body.length}`,
          "Connection: close",
        ),
        body,
      );
  },
  "chunks-up"() {
    for (let i = 0; i < connections; i += 1) {
      const socket = counted(connect({ port: orders.port, host: "127.0.0.1", noDelay: true }));
      socket.write(
        head("POST", `/sandboxes/${orders.sandboxId}/v1/files`, token, "Transfer-Encoding: chunked"),
      );
      sendForEver(socket, chunksOfOneByte);
    }
  },
  "frames-up"() {
    for (let i = 0; i < connections; i += 1) smallDataFrames();
  },
  windows() {
    for (let i = 0; i < connections; i += 1) windowUpdates();
  },
  "chunks-down"() {
    for (let i = 0; i < connections; i += 1) ask(head("GET", atPort("/chunks")));
  },
  early() {
    for (let i = 0; i < connections; i += 1) ask(head("GET", atPort("/early"), "Connection: close"));
  },
  lists() {
    const body = '{"page_size":1000}';
    const list = head(
      "POST",
      "/cloche.public.v1.SandboxService/ListAuditEntries",
      token,
      "Content-Type: application/json",
      `Content-Length: ${body.length}`,
    );
    const open: Socket[] = [];
    const more = (): void => {
      const socket = connect({ port: orders.gatewayPort, host: "127.0.0.1" }).pause();
      socket.on("error", () => undefined);
      socket.write((list + body).repeat(pipelinedLists), () => void Atomics.add(moved, 0, 1));
      open.push(socket);
      if (open.length > listConnections) open.shift()?.destroy();
    };
    for (let i = 0; i < listConnections; i += 1) more();
    setInterval(more, 50);
  },
  signatures() {
    for (let i = 0; i < connections; i += 1) {
      const socket = counted(connect({ port: orders.e2bPort, host: "127.0.0.1", noDelay: true }));
      const text = head("GET", "/files?path=/etc/passwd&signature=v1_x");
      socket.on("data", (data) => String(data).includes("HTTP/1.1 401") && socket.write(text));
      socket.write(text);
    }
  },
};

/** Makes WebSocket messages of one byte, each a record of TLS, before the first is sent. */
async function messagesReady(): Promise<() => void> {
  const socket = connect({ port: orders.tlsPort, host: "127.0.0.1", noDelay: true });
  let held: Buffer[] | undefined;
  const wire = new Duplex({
    read: () => undefined,
    write(bytes: Buffer, _encoding, done) {
      if (held === undefined) socket.write(bytes);
      else held.push(bytes);
      done();
    },
  });
  socket.on("data", (data) => wire.push(data));
  const secure = connectTls({ socket: wire, ca: orders.ca, servername: orders.baseDomain });
  const upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"];
  secure.write(head("GET", atPort("/messages"), ...upgrade, "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="));
  await once(secure, "data");
  held = [];
  for (let made = 0; made < messagesSent; made += 1) await new Promise((done) => secure.write(message, done));
  const all = Buffer.concat(held);
  return () => void socket.write(all);
}

// oxlint-disable-next-line unicorn/require-post-message-target-origin -- to a thread
parentPort?.postMessage(await serve());
await once(parentPort as MessagePort, "message");
const begin = orders.harm === "messages" ? await messagesReady() : harms[orders.harm];
// oxlint-disable-next-line unicorn/require-post-message-target-origin -- to a thread
parentPort?.postMessage("ready");
begin();
