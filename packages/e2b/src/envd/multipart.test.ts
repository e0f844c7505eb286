import { Readable } from "node:stream";
import { expect, test } from "vitest";
import { uploads } from "./multipart.ts";

const boundary = "xyz";
const type = `multipart/form-data; boundary=${boundary}`;
const part = (disposition: string, content: string): string =>
  `--${boundary}\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n${content}\r\n`;
const end = `--${boundary}--\r\n`;

async function read(...pieces: string[]): Promise<[string, string][]> {
  const found: [string, string][] = [];
  for await (const { name, content } of uploads(Readable.from(pieces.map((one) => Buffer.from(one))), type)) {
    const chunks: Buffer[] = [];
    for await (const chunk of content as AsyncIterable<Buffer>) chunks.push(chunk);
    found.push([name, Buffer.concat(chunks).toString()]);
  }
  return found;
}

test("parts come in their order with their paths", async () => {
  const files = [
    part('name="file"; filename="/srv/a b/ü.txt"', "one"),
    part('name="other"; filename="x"', "not asked for"),
    part('name="file"; filename="two.txt"', "x".repeat(300_000)),
    part('name="file"', "without a name"),
  ];
  expect(await read(...files, end)).toEqual([
    ["/srv/a b/ü.txt", "one"],
    ["two.txt", "x".repeat(300_000)],
    ["", "without a name"],
  ]);
});

test("a body that is cut off fails instead of being taken for the whole", async () => {
  await expect(
    read(part('name="file"; filename="a"', "one"), `--${boundary}\r\nContent-Dis`),
  ).rejects.toThrow();
});

test("a form without a boundary is refused", async () => {
  const reading = uploads(Readable.from([]), "multipart/form-data").next();
  await expect(reading).rejects.toThrow("content-type is not valid multipart");
});

test.each([
  ["parts of another name", part('name="other"', "x").repeat(200), "at most 100 parts"],
  ["parts without a name", `--${boundary}\r\nX: y\r\n\r\n\r\n`.repeat(20_000), "at most 10100 parts"],
])("a form of very many %s is refused before it is read to its end", async (_what, parts, message) => {
  async function* body(): AsyncGenerator<Buffer> {
    yield Buffer.from(parts);
    await new Promise(() => undefined);
  }
  await expect(uploads(Readable.from(body()), type).next()).rejects.toThrow(message);
});
