/** A storage that answers what it should not: more than was asked, packed, without end, from elsewhere. */
import { once } from "node:events";
import { createServer, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { gzipSync } from "node:zlib";
import { afterEach, expect, it } from "vitest";
import type { BlobStore } from "./blob-store.ts";
import { openS3Store, parseS3Address } from "./s3-store.ts";

let server: Server | undefined;
let requests = 0;
afterEach(() => {
  server?.closeAllConnections();
  server?.close();
});

async function storeThat(answers: RequestListener): Promise<BlobStore> {
  requests = 0;
  server = createServer((request, response) => {
    requests += 1;
    response.on("error", () => undefined);
    answers(request, response);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const keys = { AWS_ACCESS_KEY_ID: "a", AWS_SECRET_ACCESS_KEY: "b" };
  return openS3Store(parseS3Address(`s3://bucket/prefix?endpoint=http://127.0.0.1:${port}`, keys));
}

/** Sends 64 KiB after 64 KiB, as fast as they are read. */
const endless: RequestListener = (_request, response) => {
  const piece = Buffer.alloc(64 * 1024);
  const more = (): void => {
    while (!response.destroyed && response.write(piece));
    if (!response.destroyed) response.once("drain", more);
  };
  more();
};

const page = (token: string): string =>
  `<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>${token}</NextContinuationToken></ListBucketResult>`;

it("reads no more than the range, from a server that ignores it", async () => {
  const store = await storeThat(endless);
  await expect(store.get("key", { offset: 0, length: 10 })).rejects.toMatchObject({ code: "internal" });
});

it("unpacks no more than the range either", async () => {
  const packed = gzipSync(Buffer.alloc(64 * 1024 * 1024));
  const store = await storeThat((_request, response) => {
    response.writeHead(206, { "content-encoding": "gzip" }).end(packed);
  });
  await expect(store.get("key", { offset: 0, length: 1_000 })).rejects.toMatchObject({ code: "internal" });
});

it("reads an object without end up to its bound", async () => {
  const before = process.memoryUsage.rss();
  await expect((await storeThat(endless)).get("key")).rejects.toMatchObject({ code: "internal" });
  expect(process.memoryUsage.rss() - before).toBeLessThan(1024 * 1024 * 1024);
});

it("follows no redirect", async () => {
  const store = await storeThat((_request, response) => {
    response.writeHead(307, { location: "/elsewhere" }).end();
  });
  await expect(store.get("key")).rejects.toMatchObject({ code: "unavailable" });
  await expect(store.put("key", Buffer.alloc(10))).rejects.toMatchObject({ code: "unavailable" });
  expect(requests).toBe(2);
});

it("ends a list whose pages lead to themselves", async () => {
  const store = await storeThat((_request, response) => void response.end(page("same")));
  await expect(store.list("")).rejects.toMatchObject({ code: "internal" });
  expect(requests).toBe(2);
});

it.each([
  ["tags in tags", "<a>".repeat(200_000)],
  ["objects without end tags", "<Contents><Key>".repeat(100_000)],
])("reads %s in moments", async (_what, text) => {
  const store = await storeThat((_request, response) => void response.end(`<ListBucketResult>${text}`));
  const before = performance.now();
  expect(await store.list("")).toEqual([]);
  expect(performance.now() - before).toBeLessThan(5_000);
});

it("leaves out objects that are not below the prefix, and sizes that are none", async () => {
  const objects = [
    ["../../etc/passwd", 5],
    ["other/a", 5],
    ["prefix/b", -5],
    ["prefix/c", "1e999"],
    ["prefix/d", 7],
  ].map(([key, size]) => `<Contents><Key>${key}</Key><Size>${size}</Size></Contents>`);
  const text = `<ListBucketResult>${objects.join("")}</ListBucketResult>`;
  const store = await storeThat((_request, response) => void response.end(text));
  expect(await store.list("")).toEqual([{ key: "d", bytes: 7, modifiedAtMs: Infinity }]);
});
