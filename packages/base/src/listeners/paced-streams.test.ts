// Counts pieces, not time: how many pieces of an HTTP/2 body a server handles, whatever the client's frames are.
import { once } from "node:events";
import { createServer, type Http2ServerRequest, type Http2ServerResponse } from "node:http2";
import { type AddressInfo, connect } from "node:net";
import { expect, test } from "vitest";
import { boundSessions, http2Bounds } from "./bound-listener.ts";
import { ConnectionPlaces } from "./connection-places.ts";

const types = { data: 0, headers: 1, settings: 4 } as const;
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

test("DATA frames of one byte come out whole, in order and in few pieces", async () => {
  const server = createServer(http2Bounds);
  boundSessions(server, new ConnectionPlaces({ connections: 2, connectionsPerAddress: 2 }));
  await once(server.listen(0, "127.0.0.1"), "listening");
  const socket = connect((server.address() as AddressInfo).port, "127.0.0.1");
  const block = [":method POST", ":scheme http", ":path /", ":authority x"].map((line) =>
    field(...(line.split(" ") as [string, string])),
  );
  socket.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  socket.write(frame(types.settings, 0, 0, Buffer.alloc(0)));
  socket.write(frame(types.headers, 4, 1, Buffer.concat(block)));
  const letters = Array.from({ length: frames }, (_, at) => Buffer.of(97 + (at % 26)));
  socket.write(Buffer.concat(letters.map((letter) => frame(types.data, 0, 1, letter))));
  socket.write(frame(types.data, 1, 1, Buffer.alloc(0)));
  const [request] = (await once(server, "request")) as [Http2ServerRequest, Http2ServerResponse];
  const pieces: Buffer[] = [];
  request.on("data", (piece: Buffer) => pieces.push(piece));
  await once(request, "end");
  socket.destroy();
  server.close();
  expect(Buffer.concat(pieces).equals(Buffer.concat(letters))).toBe(true);
  expect(pieces.length).toBeLessThan(300);
});
