/**
 * Line ends that proxies accept (RFC 9112, 2.2). A request's lines end with CRLF, and nothing else is understood.
 */
import { once } from "node:events";
import net from "node:net";
import { expect, test } from "vitest";
import { sandboxA } from "./testing/fake-gateway.ts";
import { readAll, Rig } from "./testing/rig.ts";

const smuggled = (rig: Rig): string => `GET /v1/smuggled HTTP/1.1\r\nHost: ${rig.host()}\r\n\r\n`;
const statuses = (text: string): string[] => text.match(/HTTP\/1\.1 \d+/g) ?? [];

test("a request with a bare LF is refused, whichever line it ends, and what follows it is no request", async () => {
  await using rig = await Rig.start();
  const host = `Host: ${rig.host()}`;
  for (const head of [
    `GET /v1/x HTTP/1.1\n${host}\n\n`,
    `GET /v1/x HTTP/1.1\n${host}\r\n\r\n`,
    `GET /v1/x HTTP/1.1\r\n${host}\nX: a\r\n\r\n`,
    `GET /v1/x HTTP/1.1\r\n${host}\r\nX: a\n\r\n`,
    `POST /v1/x HTTP/1.1\r\n${host}\r\nX: a\nContent-Length: 5\r\n\r\nhello`,
    `POST /v1/x HTTP/1.1\r\n${host}\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n`,
  ]) {
    const text = await rig.raw(`${head}${smuggled(rig)}`);
    expect(statuses(text), JSON.stringify(head)).toEqual(["HTTP/1.1 400"]);
  }
  const kept = `GET /v1/good HTTP/1.1\r\n${host}\r\n\r\n`;
  await rig.raw(`${kept}GET /v1/x HTTP/1.1\n${host}\n\n${smuggled(rig)}`);
  const plain = net.connect(rig.plainPort, "127.0.0.1");
  await once(plain, "connect");
  plain.write(`GET /sandboxes/${sandboxA}/v1/x HTTP/1.1\nHost: localhost\n\n`);
  expect(statuses(await readAll(plain))).toEqual(["HTTP/1.1 400"]);
  expect(rig.seen.map(({ url }) => url)).toEqual(["/v1/good"]);
});

test("empty lines before a request are skipped, also on a kept connection and without TLS", async () => {
  await using rig = await Rig.start();
  const get = (path: string, more = ""): string =>
    `GET ${path} HTTP/1.1\r\nHost: ${rig.host()}\r\n${more}\r\n`;
  const kept = await rig.raw(`\r\n\r\n${get("/v1/1")}\r\n\r\n${get("/v1/2", "Connection: close\r\n")}`);
  expect(statuses(kept)).toEqual(["HTTP/1.1 200", "HTTP/1.1 200"]);
  const plain = net.connect(rig.plainPort, "127.0.0.1");
  await once(plain, "connect");
  plain.write(
    `\r\n\r\nGET /sandboxes/${sandboxA}/v1/3 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`,
  );
  expect(await readAll(plain)).toMatch(/^HTTP\/1\.1 200 /);
  expect(rig.seen.map(({ url }) => url)).toEqual(["/v1/1", "/v1/2", "/v1/3"]);
});

test("a head that does not come, or not whole, is refused in time, with TLS and without", async () => {
  await using rig = await Rig.start({ limits: { headersTimeoutMs: 500 } });
  const plain = async (): Promise<net.Socket> => {
    const socket = net.connect(rig.plainPort, "127.0.0.1");
    await once(socket, "connect");
    return socket;
  };
  for (const connect of [plain, () => rig.connect()])
    for (const begun of ["", "PRI * HTTP/2.0\r\n", "GET /v1/x HTTP/1.1\r\n"]) {
      const socket = await connect();
      socket.write(begun);
      expect(await readAll(socket), begun).toMatch(/^HTTP\/1\.1 4\d\d /);
    }
});
