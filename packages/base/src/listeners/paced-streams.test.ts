/**
 * Counts pieces, not time: how many pieces of an HTTP/2 body a server handles, whatever the client's frames are.
 */
import { once } from "node:events";
import {
  connect as connectHttp2,
  createServer,
  type Http2ServerRequest,
  type Http2ServerResponse,
} from "node:http2";
import { type AddressInfo, connect, createServer as createTcp, type Socket } from "node:net";
import { setImmediate as turn } from "node:timers/promises";
import { expect, test } from "vitest";
import { boundSessions, http2Bounds } from "./bound-listener.ts";
import { ConnectionPlaces } from "./connection-places.ts";
import { paceStream } from "./paced-streams.ts";

const types = { data: 0, headers: 1, settings: 4, ping: 6 } as const;
const frames = 20_000;

function frame(type: number, flags: number, streamId: number, payload: Buffer): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(streamId, 5);
  return Buffer.concat([head, payload]);
}

/** Without compression (RFC 7541, 6.2.2). */
const field = (name: string, value: string): Buffer =>
  Buffer.concat([Buffer.of(0, name.length), Buffer.from(name), Buffer.of(value.length), Buffer.from(value)]);

const request = Buffer.concat(
  [":method POST", ":scheme http", ":path /", ":authority x"].map((line) =>
    field(...(line.split(" ") as [string, string])),
  ),
);
const preface = Buffer.concat([
  Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
  frame(types.settings, 0, 0, Buffer.alloc(0)),
]);
/** A ping of one byte is an error that ends the connection (RFC 9113, 6.7). */
const wrongPing = frame(types.ping, 0, 0, Buffer.alloc(1));

test("a client's connection that ends behind a small DATA frame does no harm", async () => {
  const server = createServer(http2Bounds, () => undefined);
  boundSessions(server, new ConnectionPlaces({ connections: 2, connectionsPerAddress: 2 }));
  server.on("session", (session) => session.on("error", () => undefined));
  await once(server.listen(0, "127.0.0.1"), "listening");
  const socket = connect((server.address() as AddressInfo).port, "127.0.0.1");
  const small = frame(types.data, 0, 1, Buffer.alloc(1));
  socket.write(Buffer.concat([preface, frame(types.headers, 4, 1, request), small, wrongPing]));
  await once(socket.resume(), "close");
  // An error of the next turn would end the process; here it fails the test.
  await turn();
  server.close();
});

test("a stream that is over gets no 100 Continue, which would throw", () => {
  const server = createServer(http2Bounds);
  boundSessions(server, new ConnectionPlaces({ connections: 2, connectionsPerAddress: 2 }));
  const seen: string[] = [];
  server.on("request", () => seen.push("request"));
  const expects = (isOver: boolean): boolean =>
    server.emit(
      "checkContinue",
      {} as Http2ServerRequest,
      {
        stream: { destroyed: isOver, closed: isOver },
        writeContinue: () => seen.push("continue"),
      } as unknown as Http2ServerResponse,
    );
  expects(true);
  expect(seen).toEqual([]);
  expect(expects(false), "node does not answer by itself").toBe(true);
  expect(seen).toEqual(["continue", "request"]);
});

test("nor does that of a server", async () => {
  const server = createTcp((socket: Socket) => {
    const small = frame(types.data, 0, 1, Buffer.alloc(1));
    const head = frame(types.headers, 4, 1, field(":status", "200"));
    socket.write(frame(types.settings, 0, 0, Buffer.alloc(0)));
    socket.once("data", () => socket.write(Buffer.concat([head, small, wrongPing])));
    socket.on("error", () => undefined);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const session = connectHttp2(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  session.on("error", () => undefined);
  const stream = session.request({ ":path": "/" });
  stream.on("error", () => undefined);
  paceStream(stream, session.socket as Socket);
  await new Promise((resolve) => session.once("close", resolve));
  await turn();
  server.close();
});

test("DATA frames of one byte come out whole, in order and in few pieces", async () => {
  const server = createServer(http2Bounds);
  boundSessions(server, new ConnectionPlaces({ connections: 2, connectionsPerAddress: 2 }));
  await once(server.listen(0, "127.0.0.1"), "listening");
  const socket = connect((server.address() as AddressInfo).port, "127.0.0.1");
  socket.write(preface);
  socket.write(frame(types.headers, 4, 1, request));
  const letters = Array.from({ length: frames }, (_, at) => Buffer.of(97 + (at % 26)));
  socket.write(Buffer.concat(letters.map((letter) => frame(types.data, 0, 1, letter))));
  socket.write(frame(types.data, 1, 1, Buffer.alloc(0)));
  const [incoming] = (await once(server, "request")) as [Http2ServerRequest, Http2ServerResponse];
  const pieces: Buffer[] = [];
  incoming.on("data", (piece: Buffer) => pieces.push(piece));
  await once(incoming, "end");
  socket.destroy();
  server.close();
  expect(Buffer.concat(pieces).equals(Buffer.concat(letters))).toBe(true);
  expect(pieces.length).toBeLessThan(300);
});
