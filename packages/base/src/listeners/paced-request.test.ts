/**
 * Counts pieces, not time: how many pieces of a client's body a server handles, whatever the client's chunks are.
 */
import { once } from "node:events";
import { createServer } from "node:http";
import { connect, type AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { http1Bounds } from "./bound-listener.ts";

/** Sends `sizes` as chunks of one body; answers the body and in how many pieces it arrived. */
async function received(sizes: readonly number[]): Promise<{ body: string; pieces: number }> {
  const server = createServer(http1Bounds, (request, response) => {
    let [body, pieces] = ["", 0];
    request.on("data", (piece: Buffer) => {
      body += piece.toString("latin1");
      pieces += 1;
    });
    request.once("end", () => response.end(JSON.stringify({ body, pieces })));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const socket = connect((server.address() as AddressInfo).port, "127.0.0.1");
  const chunks = sizes.map((size, at) => `${size.toString(16)}\r\n${letterOf(at).repeat(size)}\r\n`);
  socket.write("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
  socket.write(`${chunks.join("")}0\r\n\r\n`);
  let answer = "";
  for await (const bytes of socket) answer += String(bytes);
  server.close();
  return JSON.parse(answer.slice(answer.indexOf("{"), answer.lastIndexOf("}") + 1)) as Awaited<
    ReturnType<typeof received>
  >;
}

const letterOf = (at: number): string => String.fromCharCode(97 + (at % 26));

test.each([
  ["of one byte", Array<number>(20_000).fill(1)],
  ["small and large in turn", [1, 5_000, 1_023, 1_024, 17, 16_384, 1]],
  ["more than are handed on together", Array<number>(100).fill(1_000)],
])("chunks %s come out whole and in order", async (_what, sizes) => {
  const { body } = await received(sizes);
  expect(body).toBe(sizes.map((size, at) => letterOf(at).repeat(size)).join(""));
});

test("chunks of one byte are handed on together", async () => {
  expect((await received(Array<number>(20_000).fill(1))).pieces).toBeLessThan(200);
});
