/** Limits of an HTTP/2 client on one connection, so that it harms no other client. */
import { once } from "node:events";
import http2 from "node:http2";
import type { TLSSocket } from "node:tls";
import { Metrics } from "@cloche/base";
import { expect, test } from "vitest";
import {
  askHttp2,
  bareHttp2,
  block,
  frame,
  frameTypes,
  http2Client,
  open,
  requestOf,
} from "./testing/http2-client.ts";
import { Rig, until } from "./testing/rig.ts";

/** Sends `piece` until the edge ends the connection, at most `most` times; returns how often. */
async function pour(socket: TLSSocket, most: number, piece: (count: number) => Buffer): Promise<number> {
  let closed = false;
  let count = 0;
  const over = new Promise<void>((resolve) => socket.once("close", resolve).resume());
  void over.then(() => (closed = true));
  for (; count < most && !closed; count += 1) {
    if (!socket.write(piece(count)))
      await Promise.race([new Promise((resolve) => socket.once("drain", resolve)), over]);
    if (count % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  if (!closed) await Promise.race([over, new Promise((resolve) => setTimeout(resolve, 2_000))]);
  return closed ? count : Number.POSITIVE_INFINITY;
}

test.each([
  ["pings", () => frame(frameTypes.ping, 0, 0, Buffer.alloc(8))],
  ["settings", () => frame(frameTypes.settings, 0, 0)],
] as const)("a flood of %s ends its connection", async (_what, piece) => {
  await using rig = await Rig.start();
  using other = http2Client(rig);
  expect(await pour(await bareHttp2(rig), 200_000, piece)).toBeLessThan(200_000);
  expect((await askHttp2(rig, other, { ":path": "/v1/x" })).status).toBe(200);
});

test.each([
  ["window updates", frame(frameTypes.windowUpdate, 0, 0, Buffer.of(0, 0, 0, 1))],
  ["priorities", frame(frameTypes.priority, 0, 3, Buffer.of(0, 0, 0, 0, 1))],
  ["frames of an unknown kind", frame(0x42, 0, 0, Buffer.alloc(20))],
])("a flood of %s ends its connection", async (_what, one) => {
  await using rig = await Rig.start();
  const many = Buffer.concat(Array<Buffer>(200).fill(one));
  expect(await pour(await bareHttp2(rig), 20_000, () => many)).toBeLessThan(20_000);
});

test("a client that acknowledges every 4 KiB of an answer twice is not cut off", async () => {
  await using rig = await Rig.start();
  const bytes = 30 * 1024 * 1024;
  rig.onAgent = (_request, response) => response.end(Buffer.alloc(bytes));
  const socket = await bareHttp2(rig);
  const update = (streamId: number): Buffer =>
    frame(frameTypes.windowUpdate, 0, streamId, Buffer.of(0, 0, 16, 0));
  let read = 0;
  let acknowledged = 0;
  socket.on("data", (chunk: Buffer) => {
    read += chunk.length;
    for (; acknowledged + 4_096 <= read; acknowledged += 4_096)
      socket.write(Buffer.concat([update(0), update(1)]));
  });
  socket.write(frame(frameTypes.headers, 5, 1, requestOf(rig)));
  await until(() => read > bytes || socket.destroyed);
  expect(read).toBeGreaterThan(bytes);
  socket.destroy();
});

test("a flood of CONTINUATION frames ends its connection before a header is kept", async () => {
  await using rig = await Rig.start();
  const socket = await bareHttp2(rig);
  socket.write(frame(frameTypes.headers, 0, 1, requestOf(rig)));
  const more = frame(frameTypes.continuation, 0, 1, block({ x: "y".repeat(100) }));
  expect(await pour(socket, 10_000, () => more)).toBeLessThan(10_000);
  expect(rig.seen).toEqual([]);
});

test("a flood of resets ends its connection, and few of its requests reach the agent at once", async () => {
  await using rig = await Rig.start();
  let now = 0;
  let most = 0;
  rig.onAgent = (_request, response) => {
    now += 1;
    most = Math.max(most, now);
    response.once("close", () => (now -= 1));
  };
  const cancel = Buffer.alloc(4);
  cancel.writeUInt32BE(http2.constants.NGHTTP2_CANCEL);
  const socket = await bareHttp2(rig);
  const poured = await pour(socket, 20_000, (count) => {
    const id = 2 * count + 1;
    return Buffer.concat([frame(frameTypes.headers, 5, id, requestOf(rig)), frame(3, 0, id, cancel)]);
  });
  expect(poured).toBeLessThan(20_000);
  await until(() => now === 0);
  expect(most).toBeLessThan(1_000);
  using other = http2Client(rig);
  rig.onAgent = (_request, response) => response.end("ok");
  expect((await askHttp2(rig, other, { ":path": "/v1/x" })).body).toBe("ok");
});

test("a flood of heads that are too large ends its connection", async () => {
  await using rig = await Rig.start({ limits: { streamResetBurst: 20 } });
  // The edge takes twice as many lines as are allowed, to answer the request.
  const lines = Buffer.concat(Array<Buffer>(150).fill(block({ x: "y".repeat(100) })));
  const socket = await bareHttp2(rig);
  const poured = await pour(socket, 20_000, (count) => {
    const id = 2 * count + 1;
    return Buffer.concat([
      frame(frameTypes.headers, 1, id, requestOf(rig)),
      ...Array.from({ length: 4 }, (_, at) => frame(frameTypes.continuation, at === 3 ? 4 : 0, id, lines)),
    ]);
  });
  expect(poured).toBeLessThan(20_000);
  expect(rig.seen).toEqual([]);
});

test("more streams than are allowed are refused, and those that are open go on", async () => {
  await using rig = await Rig.start({ limits: { streams: 4 } });
  rig.onAgent = (_request, response) => void setTimeout(() => response.end("ok"), 100);
  const socket = await bareHttp2(rig);
  const received: Buffer[] = [];
  socket.on("data", (chunk: Buffer) => received.push(chunk));
  for (let id = 1; id < 20; id += 2) socket.write(frame(frameTypes.headers, 5, id, requestOf(rig)));
  const refused = frame(3, 0, 9, Buffer.of(0, 0, 0, http2.constants.NGHTTP2_REFUSED_STREAM));
  await until(() => Buffer.concat(received).includes(refused));
  // Each accepted stream gets its DATA.
  await until(() => Buffer.concat(received).toString("latin1").split("ok").length === 5);
  socket.destroy();
});

test("headers past the limit end their stream, and small ones that unpack to much too", async () => {
  await using rig = await Rig.start();
  using session = http2Client(rig);
  const many = Object.fromEntries(Array.from({ length: 10_000 }, (_, index) => [`h-${index}`, "v"]));
  await expect(askHttp2(rig, session, { ":path": "/v1/x", ...many })).rejects.toThrow();
  // One entry of the table of headers, then one byte for each use of it (RFC 7541, 6.2.1).
  const entry = Buffer.concat([
    Buffer.of(0x40, 1),
    Buffer.from("x"),
    Buffer.of(0x7f, ((3_000 - 127 + 0) & 0x7f) | 0x80, (3_000 - 127) >> 7),
    Buffer.alloc(3_000, "y"),
  ]);
  const bomb = Buffer.concat([requestOf(rig), entry, Buffer.alloc(10_000, 0xbe)]);
  const socket = await bareHttp2(rig);
  const received: Buffer[] = [];
  socket.on("data", (chunk: Buffer) => received.push(chunk));
  socket.write(frame(frameTypes.headers, 5, 1, bomb));
  await until(
    () => socket.destroyed || Buffer.concat(received).includes(Buffer.of(0, 0, 4, 3, 0, 0, 0, 0, 1)),
  );
  expect(rig.seen).toEqual([]);
  using other = http2Client(rig);
  expect((await askHttp2(rig, other, { ":path": "/v1/x" })).status).toBe(200);
  socket.destroy();
});

test("a connection that asks nothing is closed in time, whatever else it sends", async () => {
  await using rig = await Rig.start({ limits: { idleConnectionMs: 100, lingerMs: 50 } });
  const socket = await bareHttp2(rig);
  const ping = setInterval(() => socket.write(frame(frameTypes.ping, 0, 0, Buffer.alloc(8))), 10);
  socket.resume();
  await once(socket, "close");
  clearInterval(ping);
  const trickling = await bareHttp2(rig);
  trickling.write(frame(frameTypes.headers, 0, 1, requestOf(rig)).subarray(0, 20));
  trickling.resume();
  await once(trickling, "close");
});

test("a connection on which the rest of an answered request comes is not idle, however long it takes", async () => {
  await using rig = await Rig.start({ limits: { idleConnectionMs: 100, lingerMs: 5_000 } });
  rig.onAgent = (_request, response) => response.writeHead(413).end();
  using session = http2Client(rig);
  let closed = false;
  session.once("close", () => (closed = true)).on("error", () => undefined);
  const stream = open(rig, session, { ":method": "POST", ":path": "/v1/x" });
  stream.on("error", () => undefined).resume();
  const [head] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
  expect(head[":status"]).toBe(413);
  for (let sent = 0; sent < 10; sent += 1) {
    await new Promise((resolve) => stream.write(Buffer.alloc(1_000), resolve));
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  expect([closed, session.closed]).toEqual([false, false]);
  stream.end();
  await until(() => closed);
});

test("a body that stops coming is 408, and one that is answered early is not read without end", async () => {
  await using rig = await Rig.start({ limits: { bodyStallMs: 60, lingerBytes: 1_000_000 } });
  using session = http2Client(rig);
  const stalled = open(rig, session, { ":method": "POST", ":path": "/v1/x", "content-length": "10" });
  stalled.write("hal");
  const [head] = (await once(stalled, "response")) as [http2.IncomingHttpHeaders];
  expect(head[":status"]).toBe(408);

  rig.onAgent = (_request, response) => response.writeHead(413).end();
  const large = open(rig, session, { ":method": "POST", ":path": "/v1/x" });
  large.resume();
  large.write(Buffer.alloc(8 * 1024 * 1024));
  await once(large, "close");
  expect(large.rstCode).toBe(http2.constants.NGHTTP2_NO_ERROR);
});

test("HTTP/2 connections are counted, and no longer when they are over", async () => {
  const metrics = new Metrics();
  await using rig = await Rig.start({ metrics });
  const session = http2Client(rig);
  await askHttp2(rig, session, { ":path": "/v1/x" });
  expect(await metrics.text()).toMatch(/^cloche_edge_connections 1$/m);
  session.destroy();
  await until(async () => /^cloche_edge_connections 0$/m.test(await metrics.text()));
});
