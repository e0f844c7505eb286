// Clients that do not play by the rules: the right error, and the service goes on for everyone else.
import net from "node:net";
import tls from "node:tls";
import { afterEach, beforeAll, describe, expect, inject, test } from "vitest";
import type { TestSandbox } from "../conformance/session.ts";
import { sharedClient } from "../fixtures/client.ts";

const { target, baseDomain } = inject("service");
const client = sharedClient();
let sandbox: TestSandbox;
beforeAll(async () => {
  sandbox = await client.create();
});
afterEach(async () => {
  expect((await client.exec(sandbox, ["echo", "alive"])).stdout).toBe("alive\n");
  expect(await client.gateway("ListSandboxes")).toHaveProperty("sandboxes");
});

const edge = (servername = sandbox.domain.replace(/:\d+$/, "")): Promise<tls.TLSSocket> =>
  new Promise((resolve, reject) => {
    const at = { host: target.edgeHost, port: target.edgePort, servername, ca: target.ca };
    // Names that the certificate does not cover are asked for as well.
    const socket = tls.connect({ ...at, checkServerIdentity: () => undefined }, () => resolve(socket));
    socket.once("error", reject);
  });
const gateway = (): Promise<net.Socket> =>
  new Promise((resolve, reject) => {
    const { hostname, port } = new URL(target.gatewayUrl);
    const socket = net.connect(Number(port), hostname, () => resolve(socket));
    socket.once("error", reject);
  });

/** Everything the server sends until it closes the connection or says nothing more for a while. */
function answerOf(socket: net.Socket, quietMs = 3_000): Promise<string> {
  return new Promise((resolve) => {
    let text = "";
    const done = (): void => {
      socket.destroy();
      resolve(text);
    };
    socket.setTimeout(quietMs, done);
    socket.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
    });
    socket.on("error", done);
    socket.on("close", done);
  });
}
const statusOf = (answer: string): number => Number(/^HTTP\/1\.1 (\d+)/.exec(answer)?.[1] ?? 0);

const surfaces = [
  { name: "the edge", connect: () => edge(), host: () => sandbox.domain, known: [200] },
  // The gateway has no GET: it says so.
  { name: "the gateway", connect: gateway, host: () => new URL(target.gatewayUrl).host, known: [404, 405] },
];

describe.each(surfaces)("$name", ({ connect, host, known }) => {
  test("answers ten thousand headers with a 4xx", async () => {
    const socket = await connect();
    socket.on("error", () => undefined);
    const answer = answerOf(socket);
    const many = Array.from({ length: 10_000 }, (_, index) => `x-h-${index}: v\r\n`).join("");
    socket.write(`GET /v1/services HTTP/1.1\r\nhost: ${host()}\r\n${many}\r\n`);
    expect([400, 431]).toContain(statusOf(await answer));
  });

  test("answers one header of a megabyte with a 4xx", async () => {
    const socket = await connect();
    socket.on("error", () => undefined);
    const answer = answerOf(socket);
    socket.write(`GET /v1/services HTTP/1.1\r\nhost: ${host()}\r\nx-long: ${"v".repeat(1_000_000)}\r\n\r\n`);
    expect([400, 431]).toContain(statusOf(await answer));
  });

  test("answers what is no HTTP with a 4xx or hangs up", async () => {
    const socket = await connect();
    const answer = answerOf(socket);
    socket.write("\x00\x01\x02 this is no HTTP\r\n\r\n");
    expect([0, 400]).toContain(statusOf(await answer));
  });

  test("answers a very long path with a 4xx", async () => {
    const socket = await connect();
    socket.on("error", () => undefined);
    const answer = answerOf(socket);
    socket.write(`GET /${"a".repeat(100_000)} HTTP/1.1\r\nhost: ${host()}\r\nconnection: close\r\n\r\n`);
    expect([400, 404, 414, 431]).toContain(statusOf(await answer));
  });

  test("refuses a request with two lengths or two framings", async () => {
    for (const framing of [
      "content-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
      "content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
      "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ]) {
      const socket = await connect();
      const answer = answerOf(socket);
      const auth = `authorization: Bearer ${sandbox.token}\r\n`;
      socket.write(`POST /v1/exec HTTP/1.1\r\nhost: ${host()}\r\n${auth}${framing}`);
      const status = statusOf(await answer);
      expect(status >= 400 && status < 500, `${framing.split("\r\n").join(" ")}: ${status}`).toBe(true);
    }
  });

  test("serves others while a client sends a byte a second", async () => {
    const slow = await connect();
    slow.on("error", () => undefined);
    slow.write("POST /v1/exec HTTP/1.1\r\nhost");
    const drip = setInterval(() => slow.write(":"), 200);
    const others = await Promise.all(Array.from({ length: 5 }, () => client.exec(sandbox, ["true"])));
    expect(others.every(({ ok }) => ok)).toBe(true);
    clearInterval(drip);
    slow.destroy();
  });

  test("answers a client that shuts its sending half after the request", async () => {
    const socket = await connect();
    const answer = answerOf(socket, 10_000);
    const auth = `authorization: Bearer ${sandbox.token}\r\n`;
    socket.end(`GET /v1/services HTTP/1.1\r\nhost: ${host()}\r\n${auth}connection: close\r\n\r\n`);
    expect(known).toContain(statusOf(await answer));
  });

  test("survives a thousand connections that say nothing and go", async () => {
    for (let round = 0; round < 20; round += 1) {
      const sockets = await Promise.all(Array.from({ length: 50 }, () => connect().catch(() => undefined)));
      for (const socket of sockets) socket?.on("error", () => undefined).destroy();
    }
  });

  test("survives a body that ends before its length", async () => {
    const socket = await connect();
    socket.on("error", () => undefined);
    const auth = `authorization: Bearer ${sandbox.token}\r\n`;
    socket.write(`POST /v1/exec HTTP/1.1\r\nhost: ${host()}\r\n${auth}content-length: 1000\r\n\r\n{"cmd":`);
    await new Promise((resolve) => setTimeout(resolve, 100));
    socket.destroy();
  });
});

describe("names", () => {
  test.each([
    ["an unknown sandbox", () => `sbx-00000000000000000000.${baseDomain}`],
    ["the base domain itself", () => baseDomain],
    ["a name that is no sandbox's", () => `www.${baseDomain}`],
    ["another domain", () => "example.com"],
    ["two sandboxes' labels", () => `a.${sandbox.domain}`],
  ])("the edge answers 404 for %s", async (_, domain) => {
    const socket = await edge(domain().replace(/:\d+$/, ""));
    const answer = answerOf(socket);
    const auth = `authorization: Bearer ${sandbox.token}\r\n`;
    socket.write(`GET /v1/services HTTP/1.1\r\nhost: ${domain()}\r\n${auth}connection: close\r\n\r\n`);
    expect(statusOf(await answer)).toBe(404);
  });

  test("a token of one sandbox opens no other by a changed host header", async () => {
    const other = await client.create();
    const socket = await edge(other.domain.replace(/:\d+$/, ""));
    const answer = answerOf(socket);
    const auth = `authorization: Bearer ${other.token}\r\n`;
    socket.write(`GET /v1/services HTTP/1.1\r\nhost: ${sandbox.domain}\r\n${auth}connection: close\r\n\r\n`);
    // Misdirected: the connection was made for another name.
    expect([401, 421]).toContain(statusOf(await answer));
  });

  test("a request without a host is refused", async () => {
    const socket = await edge();
    const answer = answerOf(socket);
    socket.write("GET /v1/services HTTP/1.1\r\nconnection: close\r\n\r\n");
    expect([400, 404]).toContain(statusOf(await answer));
  });

  test("plain HTTP on the edge's port is not served", async () => {
    const socket = net.connect(target.edgePort, target.edgeHost);
    const answer = answerOf(socket);
    socket.write(`GET /v1/services HTTP/1.1\r\nhost: ${sandbox.domain}\r\n\r\n`);
    expect([0, 400]).toContain(statusOf(await answer));
  });
});
