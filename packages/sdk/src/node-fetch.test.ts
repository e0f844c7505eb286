/**
 * What Node's transport must do that a plain request does not: bodies that stream, answers that come early, connections that are kept.
 */
import { once } from "node:events";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import { nodeFetch, type NodeFetch } from "./node-fetch.ts";

let server: http.Server;
let url = "";
let fetch: NodeFetch;
let answer: (...exchange: Parameters<http.RequestListener>) => unknown = (_request, response) =>
  response.end();

beforeEach(async () => {
  server = http.createServer((request, response) => answer(request, response));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  fetch = nodeFetch();
});

afterEach(async () => {
  await fetch.close();
  server.closeAllConnections();
  server.close();
});

const pieces = (count: number, onCancel?: () => void): ReadableStream<Uint8Array<ArrayBuffer>> => {
  let sent = 0;
  return new ReadableStream({
    pull(controller) {
      if (sent === count) controller.close();
      else controller.enqueue(new Uint8Array(65_536).fill((sent += 1)));
    },
    ...(onCancel && { cancel: onCancel }),
  });
};

test("bodies go as they are: text, bytes, a Blob, a stream of pieces", async () => {
  const got: [string | undefined, number][] = [];
  answer = async (request, response) => {
    let length = 0;
    for await (const piece of request) length += (piece as Buffer).length;
    got.push([request.headers["content-length"], length]);
    response.end("{}");
  };
  for (const body of ["é", new Uint8Array(5), new Blob(["four"]), pieces(40)]) {
    const init = { method: "POST", body, duplex: "half" } as RequestInit;
    await (await fetch(url, init)).json();
  }
  expect(got).toEqual([
    ["2", 2],
    ["5", 5],
    ["4", 4],
    [undefined, 40 * 65_536],
  ]);
});

test("an answer that comes before the body is sent is read, and the rest of the body let go", async () => {
  answer = (_request, response) => {
    response.writeHead(413);
    response.end("too large");
  };
  let cancelled = false;
  const body = pieces(1_000_000, () => (cancelled = true));
  const response = await fetch(url, { method: "POST", body, duplex: "half" } as RequestInit);
  expect([response.status, await response.text()]).toEqual([413, "too large"]);
  await expect.poll(() => cancelled).toBe(true);
});

test("a source that fails ends the request with its error", async () => {
  answer = (request) => void request.resume();
  const body = new ReadableStream({ pull: () => Promise.reject(new Error("the disk is gone")) });
  await expect(fetch(url, { method: "POST", body, duplex: "half" } as RequestInit)).rejects.toThrow(
    "the disk is gone",
  );
});

test("the reader of a body sets the pace, and one that leaves ends the connection", async () => {
  let written = 0;
  let closed = false;
  answer = (_request, response) => {
    response.on("close", () => (closed = true));
    const more = (): void => {
      while (!response.destroyed && response.write(Buffer.alloc(65_536))) written += 65_536;
      response.once("drain", more);
    };
    more();
  };
  const { body } = await fetch(url, {});
  const reader = (body as ReadableStream<Uint8Array>).getReader();
  await reader.read();
  await sleep(100);
  const held = written;
  await sleep(100);
  expect(written).toBe(held);
  expect(held).toBeLessThan(64 * 1_048_576);
  await reader.cancel();
  await expect.poll(() => closed).toBe(true);
});

test("an abort while the body comes is its reader's error", async () => {
  answer = (_request, response) => void response.write("begun");
  const abort = new AbortController();
  const reason = new Error("enough");
  const response = await fetch(url, { signal: abort.signal });
  const text = response.text();
  setTimeout(() => abort.abort(reason), 10);
  await expect(text).rejects.toBe(reason);
  await expect(fetch(url, { signal: abort.signal })).rejects.toBe(reason);
});

test("a connection is used again, and lets the program end", async () => {
  const ports = new Set<number | undefined>();
  answer = (request, response) => {
    ports.add(request.socket.remotePort);
    response.end("{}");
  };
  for (let call = 0; call < 3; call += 1) await (await fetch(url, {})).text();
  expect(ports.size).toBe(1);
});
