import { once } from "node:events";
import { createServer, type IncomingMessage } from "node:http";
import net, { type AddressInfo } from "node:net";
import { ClocheError } from "@cloche/protocol";
import { expect, it } from "vitest";
import { listenerBounds } from "./bounds.ts";
import { HeldBytes } from "./held-bytes.ts";
import { type BodyBounds, readBody } from "./read-body.ts";

/** Sends the text as a request, and reads its body; answers with the length or the error's code. */
async function read(text: string, bounds: BodyBounds, leaves = false): Promise<number | string> {
  const server = createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const socket = net.connect((server.address() as AddressInfo).port, "127.0.0.1");
  try {
    socket.write(text);
    const [request] = (await once(server, "request")) as [IncomingMessage];
    if (leaves) setTimeout(() => socket.destroy(), 50);
    return await readBody(request, bounds).then(
      ({ length }) => length,
      (error: unknown) => ClocheError.from(error).code,
    );
  } finally {
    socket.destroy();
    server.closeAllConnections();
    server.close();
  }
}

const post = (length: number, body: string): string =>
  `POST / HTTP/1.1\r\nhost: x\r\ncontent-length: ${length}\r\n\r\n${body}`;

it("reads a body whole, and says what keeps it from that", async () => {
  expect(await read(post(3, "abc"), { maxBytes: 3 })).toBe(3);
  expect(await read(post(4, ""), { maxBytes: 3 })).toBe("resource_exhausted");
  const chunked = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n";
  expect(await read(chunked, { maxBytes: 3 })).toBe("resource_exhausted");
  expect(await read(post(3, "ab"), { maxBytes: 3 }, true)).toBe("canceled");
  expect(await read(post(3, "ab"), { maxBytes: 3, timeoutMs: 50 })).toBe("deadline_exceeded");
});

it("reads little of a caller who is not known", async () => {
  const refuse = (): Promise<never> => Promise.reject(new ClocheError("unauthenticated", "who is that"));
  const little = "x".repeat(listenerBounds.strangerBytes);
  const much = `${little}x`;
  const maxBytes = 2 * much.length;
  expect(await read(post(little.length, little), { maxBytes, checkCaller: refuse })).toBe(little.length);
  expect(await read(post(much.length, much), { maxBytes, checkCaller: refuse })).toBe("unauthenticated");
  let checks = 0;
  const checkCaller = async (): Promise<undefined> => void (checks += 1);
  const most = "x".repeat(maxBytes);
  expect(await read(post(maxBytes, most), { maxBytes, checkCaller })).toBe(maxBytes);
  expect(checks).toBe(1);
});

it("holds no more than each scope allows, until it is released", async () => {
  const held = new HeldBytes();
  const scopes = [
    { key: "team", most: 6 },
    { key: "process", most: 8 },
  ];
  const hold = held.hold(scopes);
  expect(await read(post(5, "abcde"), { maxBytes: 10, hold })).toBe(5);
  expect(await read(post(2, "ab"), { maxBytes: 10, hold: held.hold(scopes) })).toBe("resource_exhausted");
  const other = held.hold([{ key: "other", most: 6 }, ...scopes.slice(1)]);
  expect(await read(post(4, "abcd"), { maxBytes: 10, hold: other })).toBe("resource_exhausted");
  hold.release();
  hold.release();
  expect(held.of("team")).toBe(0);
  expect(await read(post(4, "abcd"), { maxBytes: 10, hold: other })).toBe(4);
});
