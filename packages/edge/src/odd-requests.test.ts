/**
 * Legal requests that few clients send: every method, bodies of methods that have none, bytes beyond ASCII in a query.
 */
import { once } from "node:events";
import http, { METHODS } from "node:http";
import net, { type AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { http2Client, replyOf } from "./testing/http2-client.ts";
import { baseDomain, readAll, Rig } from "./testing/rig.ts";

let rig: Rig;
const seen: { method: string; url: string; body: string }[] = [];
const server = http.createServer((request, response) => {
  let body = "";
  request.setEncoding("latin1").on("data", (chunk: string) => (body += chunk));
  request.on("end", () => {
    seen.push({ method: request.method ?? "", url: request.url ?? "", body });
    response.end("ok");
  });
});
let port: number;
beforeAll(async () => {
  rig = await Rig.start();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  port = (server.address() as AddressInfo).port;
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [port] });
});
afterAll(async () => {
  await rig[Symbol.asyncDispose]();
  server.closeAllConnections();
  server.close();
});

const portHost = (): string => `${port}-${sandboxA}.${baseDomain}`;

test("every method reaches a port's server with its body, and the next request is another", async () => {
  const methods = METHODS.filter((method) => method !== "CONNECT");
  for (const method of methods) {
    seen.length = 0;
    const head = (path: string, more: string): string =>
      `${method} ${path} HTTP/1.1\r\nHost: ${portHost()}\r\n${more}\r\n`;
    const body = "GET /smuggled HTTP/1.1\r\n\r\n";
    await rig.raw(
      head("/a", `Content-Length: ${body.length}\r\n`) +
        body +
        head("/b", "Transfer-Encoding: chunked\r\n") +
        `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n` +
        head("/c", "Connection: close\r\n"),
      portHost(),
    );
    expect(seen, method).toEqual([
      { method, url: "/a", body },
      { method, url: "/b", body },
      { method, url: "/c", body: "" },
    ]);
  }
});

test("a method that node's parser does not know is 501 by HTTP/1.1, and what is no request 400", async () => {
  const answer = await rig.raw(`BREW /pot HTTP/1.1\r\nHost: ${portHost()}\r\n\r\n`, portHost());
  expect(answer).toMatch(/^HTTP\/1\.1 501 [^]*BREW/);
  for (const bytes of ["\x16\x03\x01rubbish\r\n\r\n", "rubbish\r\n\r\n", "a b c d\r\n\r\n"])
    expect(await rig.raw(bytes, portHost())).toMatch(/^HTTP\/1\.1 400 /);
});

test("a method that node does not know reaches a port's server by HTTP/2", async () => {
  const far = net.createServer((socket) => {
    socket.once("data", (bytes) =>
      socket.end(`HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n${bytes.toString().split("\r\n")[0]}`),
    );
  });
  far.listen(0, "127.0.0.1");
  await once(far, "listening");
  const farPort = (far.address() as AddressInfo).port;
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [farPort, port] });
  using session = http2Client(rig, `${farPort}-${sandboxA}`);
  const headers = {
    ":method": "BREW",
    ":path": "/pot",
    ":authority": `${farPort}-${sandboxA}.${baseDomain}`,
  };
  expect(await replyOf(session.request(headers))).toMatchObject({ status: 200, body: "BREW /pot HTTP/1.1" });
  far.close();
});

test("a coding of the body that would be lost on the way is refused", async () => {
  seen.length = 0;
  const head = `POST /a HTTP/1.1\r\nHost: ${portHost()}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n`;
  expect(await rig.raw(`${head}0\r\n\r\n`, portHost())).toMatch(/^HTTP\/1\.1 501 /);
  expect(seen).toEqual([]);
});

const typed = "/search?q=żółw&x=%C5%BC";
const escaped = "/search?q=%C5%BC%C3%B3%C5%82w&x=%C5%BC";

test("UTF-8 in a query is percent-encoded on its way, in one piece or many, with TLS and without, by HTTP/2", async () => {
  const bytes = Buffer.from(typed).toString("latin1");
  const line = `GET ${bytes} HTTP/1.1\r\n`;
  seen.length = 0;
  const rest = `Host: ${portHost()}\r\nX-Own: ${bytes}\r\nConnection: close\r\n\r\n`;
  expect(await rig.raw(`${line}${rest}`, portHost())).toMatch(/^HTTP\/1\.1 200 /);
  const socket = await rig.connect(portHost());
  const read = readAll(socket);
  for (const byte of Buffer.from(`\r\n${line}`, "latin1")) {
    socket.write(Buffer.of(byte));
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  socket.write(rest, "latin1");
  expect(await read).toMatch(/^HTTP\/1\.1 200 /);
  const plain = net.connect(rig.plainPort, "127.0.0.1");
  plain.write(
    line.replace("/", `/sandboxes/${sandboxA}/ports/${port}/`) +
      "Host: localhost\r\nConnection: close\r\n\r\n",
    "latin1",
  );
  expect(await readAll(plain)).toMatch(/^HTTP\/1\.1 200 /);
  using session = http2Client(rig, `${port}-${sandboxA}`);
  const headers = { ":path": bytes, ":authority": portHost() };
  expect(await replyOf(session.request(headers))).toMatchObject({ status: 200 });
  expect(seen.map(({ url }) => url)).toEqual([escaped, escaped, escaped, escaped]);
  // Later requests of a connection are read by node's parser alone.
  const kept = await rig.connect(portHost());
  kept.write(`GET / HTTP/1.1\r\nHost: ${portHost()}\r\n\r\n`);
  await once(kept, "data");
  kept.write(`${line}${rest}`, "latin1");
  expect(await readAll(kept)).toMatch(/HTTP\/1\.1 400 [^]*must be percent-encoded/);
});
