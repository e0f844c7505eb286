// Line ends that proxies accept (RFC 9112, 2.2), and that no request can be smuggled by them.
import { once } from "node:events";
import net from "node:net";
import { expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { readAll, Rig, until } from "./testing/rig.ts";

const smuggled = (rig: Rig): string => `GET /v1/smuggled HTTP/1.1\r\nHost: ${rig.host()}\r\n\r\n`;
const statuses = (text: string): string[] => text.match(/HTTP\/1\.1 \d+/g) ?? [];

test("a head whose lines end with a bare LF is understood, in any pieces", async () => {
  await using rig = await Rig.start();
  const host = `Host: ${rig.host()}`;
  const get = await rig.raw(`GET /v1/get HTTP/1.1\n${host}\nX-A: 1\n\n`);
  expect(get).toMatch(/^HTTP\/1\.1 200 [^]*connection: close/i);
  const post = await rig.raw(`POST /v1/post HTTP/1.1\n${host}\nContent-Length: 7\n\na\r\n\nb\nc`);
  expect(post).toMatch(/^HTTP\/1\.1 200 /);
  const socket = await rig.connect();
  const read = readAll(socket);
  for (const byte of `\nGET /v1/bytes HTTP/1.1\n${host}\n\n`) {
    socket.write(byte);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  expect(await read).toMatch(/^HTTP\/1\.1 200 /);
  expect(rig.seen.map(({ method, url, body }) => [method, url, body])).toEqual([
    ["GET", "/v1/get", ""],
    ["POST", "/v1/post", "a\r\n\nb\nc"],
    ["GET", "/v1/bytes", ""],
  ]);
  expect(rig.seen[0]?.headers).toMatchObject({ host: rig.host(), "x-a": "1" });
});

test("empty lines before a request are skipped, of both kinds, also on a kept connection and without TLS", async () => {
  await using rig = await Rig.start();
  const get = (path: string, more = ""): string =>
    `GET ${path} HTTP/1.1\r\nHost: ${rig.host()}\r\n${more}\r\n`;
  const kept = await rig.raw(`\r\n\r\n${get("/v1/1")}\r\n\r\n${get("/v1/2", "Connection: close\r\n")}`);
  expect(statuses(kept)).toEqual(["HTTP/1.1 200", "HTTP/1.1 200"]);
  expect(statuses(await rig.raw(`\n\n\r\n${get("/v1/3", "Connection: close\r\n")}`))).toEqual([
    "HTTP/1.1 200",
  ]);
  const plain = net.connect(rig.plainPort, "127.0.0.1");
  await once(plain, "connect");
  plain.write(`\n\nGET /sandboxes/${sandboxA}/v1/4 HTTP/1.1\nHost: localhost\n\n`);
  expect(await readAll(plain)).toMatch(/^HTTP\/1\.1 200 /);
  expect(rig.seen.map(({ url }) => url)).toEqual(["/v1/1", "/v1/2", "/v1/3", "/v1/4"]);
});

test("lines of both kinds are understood where nothing follows the head, and refused with a body or an upgrade", async () => {
  await using rig = await Rig.start();
  const head = (line: string): string => `POST /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nX: a\n${line}\r\n`;
  expect(await rig.raw(head(""))).toMatch(/^HTTP\/1\.1 200 /);
  expect(rig.seen).toHaveLength(1);
  for (const line of [
    "Content-Length: 5\r\n",
    "content-length : 5\r\n",
    "Transfer-Encoding: chunked\n",
    "Connection: upgrade\r\nUpgrade: websocket\n",
  ]) {
    const text = await rig.raw(`${head(line)}hello${smuggled(rig)}`);
    expect(text, line).toMatch(/^HTTP\/1\.1 400 [^]*end each line with CRLF/);
    expect(statuses(text)).toHaveLength(1);
  }
  expect(rig.seen).toHaveLength(1);
});

test("what follows a head with a bare LF is no request, whole or in another piece", async () => {
  await using rig = await Rig.start();
  const lenient = [
    `GET /v1/x HTTP/1.1\nHost: ${rig.host()}\n\n`,
    `GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nX: a\n\n`,
    `POST /v1/x HTTP/1.1\nHost: ${rig.host()}\nContent-Length: 2\n\nhi`,
  ];
  for (const head of lenient) {
    expect(statuses(await rig.raw(head + smuggled(rig)))).toEqual(["HTTP/1.1 200"]);
    const socket = await rig.connect();
    const read = readAll(socket);
    const before = rig.seen.length;
    socket.write(head);
    await until(() => rig.seen.length > before);
    socket.write(smuggled(rig));
    expect(statuses(await read)).toEqual(["HTTP/1.1 200"]);
  }
  expect(rig.seen.filter(({ url }) => url.includes("smuggled"))).toEqual([]);
});

test("all but the first head is strict, and so is each body", async () => {
  await using rig = await Rig.start();
  const first = `GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\n\r\n`;
  const second = await rig.raw(`${first}GET /v1/lenient HTTP/1.1\nHost: ${rig.host()}\n\n`);
  expect(second).not.toContain("lenient");
  const post = `POST /v1/body HTTP/1.1\nHost: ${rig.host()}\n`;
  for (const rest of [
    "Transfer-Encoding: chunked\n\n5\nhello\n0\n\n",
    "Transfer-Encoding: chunked\nContent-Length: 5\n\n0\r\n\r\n",
    "Content-Length: 5\nContent-Length: 6\n\nhello",
    "X: a\rTransfer-Encoding: chunked\n\n0\r\n\r\n",
    "X: a\n Content-Length: 5\n\nhello",
  ]) {
    expect(await rig.raw(post + rest), JSON.stringify(rest)).toMatch(/^HTTP\/1\.1 400 /);
  }
  expect(rig.seen.map(({ url }) => url)).toEqual(["/v1/x"]);
});
