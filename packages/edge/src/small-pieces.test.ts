// How long another sandbox's caller waits while a port's server, or a client, sends its bytes in the smallest pieces.
import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { afterAll, beforeAll, expect, test } from "vitest";
import { sandboxA, sandboxB } from "./testing/fake-gateway.ts";
import { Rig } from "./testing/rig.ts";

/**
 * A port's server and its visitor, in a thread of their own, so that their work is not the edge's. The path chooses what
 * the server sends without end; what the visitor has read and written is told once it is gone.
 */
const hostile = `
const { connect, createServer } = require("node:net");
const { parentPort } = require("node:worker_threads");
const chunked = "HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n";
const upgraded = "HTTP/1.1 101 X\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n";
const kinds = {
  "/body": [chunked, "10000\\r\\n" + "a".repeat(65536) + "\\r\\n"],
  "/chunks": [chunked, "1\\r\\na\\r\\n".repeat(20000)],
  "/early": ["", "HTTP/1.1 103 X\\r\\n\\r\\n".repeat(6000)],
  "/headers": ["HTTP/1.1 200 OK\\r\\n", "a:\\r\\n".repeat(20000)],
  "/trailers": [chunked + "0\\r\\n", "a:\\r\\n".repeat(20000)],
  "/frames": [upgraded, "\\x82\\x01a".repeat(40000)],
};
createServer((socket) => {
  socket.on("error", () => {});
  socket.once("data", (bytes) => {
    const path = bytes.toString("latin1").split(" ")[1];
    if (path === "/sink") return socket.resume();
    const [head, more] = kinds[path].map((text) => Buffer.from(text, "latin1"));
    socket.write(head);
    const send = () => { while (!socket.destroyed && socket.write(more)); };
    socket.on("drain", send);
    send();
  });
}).listen(0, "127.0.0.1", function () { parentPort.postMessage(this.address().port); });
let visitor;
parentPort.on("message", ({ at, head, body }) => {
  if (at === undefined) return void visitor.destroy();
  visitor = connect(at, "127.0.0.1");
  visitor.on("error", () => {});
  visitor.on("close", () => parentPort.postMessage(visitor.bytesRead + visitor.bytesWritten));
  visitor.resume();
  visitor.write(head);
  const send = () => { while (!visitor.destroyed && visitor.write(body)); };
  visitor.on("drain", send);
  if (body !== undefined) send();
});
`;

const measureMs = 1_500;
let rig: Rig;
let worker: Worker;
let port: number;
let ordinaryMs: number;
beforeAll(async () => {
  rig = await Rig.start();
  worker = new Worker(hostile, { eval: true });
  [port] = (await once(worker, "message")) as [number];
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [port] });
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), sandboxId: sandboxB });
  ordinaryMs = (await medianWhile("/body")).ms;
});
afterAll(async () => {
  await worker.terminate();
  await rig[Symbol.asyncDispose]();
});

/**
 * The median latency of another sandbox's caller while a visitor asks for `path`, and the bytes that the visitor moved.
 */
async function medianWhile(path: string, more = "", body?: string): Promise<{ ms: number; bytes: number }> {
  const at = rig.plainPort;
  const line = `${body === undefined ? "GET" : "POST"} /sandboxes/${sandboxA}/ports/${port}${path} HTTP/1.1`;
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
  worker.postMessage({ at, head: `${line}\r\nHost: localhost\r\n${more}\r\n`, body });
  const waits: number[] = [];
  for (const endMs = performance.now() + measureMs; performance.now() < endMs; ) {
    const beganMs = performance.now();
    const answer = await rig.askPlain(`/sandboxes/${sandboxB}/v1/x`);
    expect(answer.status).toBe(200);
    waits.push(performance.now() - beganMs);
  }
  const gone = once(worker, "message");
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
  worker.postMessage({});
  const [bytes] = (await gone) as [number];
  return { ms: waits.toSorted((a, b) => a - b)[waits.length >> 1] ?? Infinity, bytes };
}

test.each([
  ["chunks of one byte", "/chunks", ""],
  ["endless 1xx answers", "/early", ""],
  ["headers of one letter", "/headers", ""],
  ["trailers of one letter", "/trailers", ""],
  [
    "WebSocket frames of one byte",
    "/frames",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
  ],
])("%s of a port's server keep nobody else waiting", async (_what, path, more) => {
  const { ms } = await medianWhile(path, more);
  expect(ms).toBeLessThan(4 * ordinaryMs + 10);
});

test("chunks of one byte of a client keep nobody else waiting", async () => {
  const chunked = "Transfer-Encoding: chunked\r\n";
  const ordinary = await medianWhile("/sink", chunked, `10000\r\n${"a".repeat(65_536)}\r\n`);
  const small = await medianWhile("/sink", chunked, "1\r\na\r\n".repeat(20_000));
  expect(small.bytes).toBeGreaterThan(1_000_000);
  expect(small.ms).toBeLessThan(2 * ordinary.ms + 50);
});
