import type { IncomingMessage, ServerResponse } from "node:http";
import { EventEmitter } from "node:events";
import { PassThrough } from "node:stream";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import { type FileCall, writeFiles } from "./files.ts";

const form = (end: string): string =>
  `--x\r\nContent-Disposition: form-data; name="file"; filename="/new/directory/file"\r\n\r\nabc${end}`;
const multipart = { "content-type": "multipart/form-data; boundary=x" };
const gzip = { "content-encoding": "gzip" };
const whole = gzipSync(Buffer.alloc(100_000, "x"));

/** What reached the sandbox of an upload to a path whose directory takes a while to be made. */
async function uploaded(headers: Record<string, string>, body: string | Buffer): Promise<string[]> {
  const contents: string[] = [];
  const files = {
    async stat() {
      await new Promise((resolve) => setTimeout(resolve, 50));
      return { is_dir: true };
    },
  };
  const dataPlane = {
    async json(_method: string, _path: string, { body }: { body: ReadableStream<Uint8Array> }) {
      contents.push(await new Response(body).text());
      return { name: "file", path: "/new/directory/file" };
    },
  };
  const request = Object.assign(new PassThrough(), { headers, rawHeaders: [] });
  const response = Object.assign(new EventEmitter(), { headersSent: true });
  const uploading = writeFiles({
    plane: { dataPlane, files } as unknown as FileCall["plane"],
    account: { uid: "0", gid: "0", home: "/root" } as unknown as FileCall["account"],
    query: new URLSearchParams("path=/new/directory/file"),
    request: request as unknown as IncomingMessage,
    response: response as unknown as ServerResponse,
  });
  request.end(body);
  await uploading;
  return contents;
}

test.each([
  ["no gzip", gzip, "not gzip at all"],
  ["gzip that is cut off", gzip, whole.subarray(0, 40)],
  ["gzip with a wrong checksum", gzip, Buffer.concat([whole.subarray(0, -8), Buffer.alloc(8)])],
  ["a form whose end is missing", multipart, form("")],
  ["a form of damaged gzip", { ...multipart, ...gzip }, "not gzip at all"],
])("%s ends its own upload only, and writes no empty file", async (_name, headers, body) => {
  await expect(uploaded(headers, body)).rejects.toMatchObject({ code: "invalid_argument" });
  // An error that nobody handles comes in a later turn, and fails the run.
  await new Promise((resolve) => setTimeout(resolve, 20));
});

test("sound bodies are written", async () => {
  expect(await uploaded(gzip, gzipSync("abc"))).toEqual(["abc"]);
  expect(await uploaded(multipart, form("\r\n--x--\r\n"))).toEqual(["abc"]);
});
