import { connect } from "node:net";
import { ClocheError, limits } from "@cloche/protocol";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { send } from "../testing/agent-fixture.ts";
import { requiredString } from "./fields.ts";
import { createHttpServer } from "./server.ts";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";

let server: Server;
let port: number;
const tracked = { open: 0, begun: 0 };

beforeEach(async () => {
  server = createHttpServer({
    routes: [
      { method: "POST", path: "/echo", handle: async (exchange) => exchange.readJson(1_000) },
      {
        method: "POST",
        path: "/name",
        handle: async (exchange) => ({ name: requiredString(await exchange.readJson(), "name") }),
      },
      {
        method: "GET",
        path: "/items/:id",
        handle: ({ params, query }) => ({ ...params, query: [...query] }),
      },
      {
        method: "POST",
        path: "/first-chunk",
        handle: async (exchange) => {
          await exchange.openBody()[Symbol.asyncIterator]().next();
          throw new ClocheError("invalid_argument", "the first chunk is wrong");
        },
      },
      { method: "GET", path: "/items/fixed", handle: () => ({ fixed: true }) },
      { method: "GET", path: "/raw/*", handle: ({ params }) => ({ rest: params["*"] }) },
      {
        method: "GET",
        path: "/boom",
        handle: () => {
          throw new Error("secret path /host/x");
        },
      },
      {
        method: "GET",
        path: "/late",
        handle: ({ response }) => {
          response.write("part");
          throw new Error("after the head");
        },
      },
    ],
    authorize: ({ request }) => {
      if (request.headers["x-refuse"]) throw new ClocheError("unauthenticated", "no");
    },
    track: () => {
      tracked.open += 1;
      tracked.begun += 1;
      return () => {
        tracked.open -= 1;
      };
    },
    randomBytes: (length) => Buffer.alloc(length, 7),
    log: { info: () => undefined, warn: () => undefined, error: () => undefined },
  });
  const { promise, resolve } = Promise.withResolvers<void>();
  server.listen(0, "127.0.0.1", resolve);
  await promise;
  ({ port } = server.address() as AddressInfo);
  tracked.open = 0;
  tracked.begun = 0;
});
afterEach(() => {
  server.closeAllConnections();
  server.close();
});

/** Sends bytes on a connection of their own and answers all that comes back until the server closes it. */
async function exchangeBytes(text: string, options: { end?: boolean } = {}): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
  let answer = "";
  socket.on("data", (chunk) => {
    answer += chunk.toString();
  });
  socket.on("end", () => {
    socket.end();
    resolve(answer);
  });
  socket.on("error", () => resolve(answer));
  if (options.end) socket.end(text);
  else socket.write(text);
  return promise;
}

describe("the HTTP server", () => {
  it("parses JSON whatever the content type says, and takes no body for an empty object", async () => {
    const plain = await send(port, "POST", "/echo", '{"a":1}', {
      "content-type": "application/x-www-form-urlencoded",
    });
    expect(plain).toMatchObject({ status: 200, json: { a: 1 } });
    expect(await send(port, "POST", "/echo", undefined, {})).toMatchObject({ status: 200, text: "{}" });
  });

  it.each([
    ["{", "JSON"],
    ["[1]", "object"],
    ["null", "object"],
    ['"x"', "object"],
    ["{}", "name"],
    ['{"name":5}', "name"],
    ['{"name":"\\u0000"}', "NUL"],
  ])("answers 400 to the body %s and says why", async (body, word) => {
    const answer = await send(port, "POST", "/name", body, {});
    expect(answer.status).toBe(400);
    expect(answer.json["code"]).toBe("invalid_argument");
    expect(answer.json["message"]).toContain(word);
  });

  it("refuses a body that is no UTF-8", async () => {
    expect(await send(port, "POST", "/echo", Buffer.from([0x22, 0xff, 0x22]), {})).toMatchObject({
      status: 400,
    });
  });

  it("keeps a sane request id and makes one otherwise", async () => {
    const kept = await send(port, "GET", "/items/1", undefined, { "x-request-id": "mine-1" });
    expect(kept.headers["x-request-id"]).toBe("mine-1");
    for (const id of ["x".repeat(200), "a b"]) {
      const made = await send(port, "GET", "/items/1", undefined, { "x-request-id": id });
      expect(made.headers["x-request-id"]).toMatch(/^req-[a-z0-9]{20}$/);
    }
    expect((await send(port, "GET", "/nowhere", undefined, {})).headers["x-request-id"]).toMatch(/^req-/);
  });

  it("routes by method and raw path", async () => {
    expect((await send(port, "GET", "/items/a%2Fb?x=1&y=a+b%26", undefined, {})).json).toEqual({
      id: "a/b",
      query: [
        ["x", "1"],
        ["y", "a b&"],
      ],
    });
    expect((await send(port, "GET", "/items/fixed", undefined, {})).json).toEqual({ fixed: true });
    expect((await send(port, "GET", "/raw/a/../b//%2e", undefined, {})).json).toEqual({
      rest: "a/../b//%2e",
    });
    expect(await send(port, "GET", "/items/", undefined, {})).toMatchObject({
      status: 404,
      json: { code: "not_found" },
    });
    expect(await send(port, "GET", "/items/%ff", undefined, {})).toMatchObject({ status: 400 });
    expect(await send(port, "GET", "/items/1?x=%ff", undefined, {})).toMatchObject({ status: 400 });
    const wrongMethod = await send(port, "PUT", "/items/1", "{}", {});
    expect(wrongMethod).toMatchObject({ status: 405, headers: { allow: "GET" } });
  });

  it("answers 401 with WWW-Authenticate before anything else", async () => {
    const answer = await send(port, "GET", "/nowhere", undefined, { "x-refuse": "1" });
    expect(answer).toMatchObject({ status: 401, headers: { "www-authenticate": "Bearer" } });
  });

  it("never shows what an internal error holds", async () => {
    const answer = await send(port, "GET", "/boom", undefined, {});
    expect(answer.status).toBe(500);
    expect(answer.text).not.toContain("secret");
  });

  it("breaks the connection where a stream fails, instead of ending it well", async () => {
    await expect(send(port, "GET", "/late", undefined, {})).rejects.toThrow();
  });

  it("answers 413 to a body one byte too large, told or found out", async () => {
    const body = `{"a":"${"x".repeat(1_000 - 8)}"}`;
    expect(body.length).toBe(1_000);
    expect((await send(port, "POST", "/echo", body, {})).status).toBe(200);
    expect(await send(port, "POST", "/echo", `${body} `, {})).toMatchObject({
      status: 413,
      json: { code: "resource_exhausted" },
    });
    const chunked = await exchangeBytes(
      `POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n${"y".repeat(1_001)}\r\n0\r\n\r\n`,
    );
    expect(chunked).toContain("413");
  });

  it("lets a client that waits for 100 Continue send nothing when its body is too large", async () => {
    const answer = await exchangeBytes(
      "POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 99999\r\n\r\n",
    );
    expect(answer).toMatch(/^HTTP\/1.1 413/);
    const { promise, resolve } = Promise.withResolvers<string>();
    const socket = connect({ port, host: "127.0.0.1" });
    let seen = "";
    socket.on("data", (chunk) => {
      seen += chunk.toString();
      if (seen.includes("100 Continue") && !seen.includes("200 OK")) socket.write("{}");
      if (seen.includes("200 OK")) {
        socket.destroy();
        resolve(seen);
      }
    });
    socket.write("POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    expect(await promise).toContain("100 Continue");
  });

  it("answers 431 to too many or too large headers and 400 to what is no HTTP", async () => {
    const many = Object.fromEntries(
      Array.from({ length: limits.headerCount + 1 }, (_, index) => [`h${index}`, "v"]),
    );
    expect(await send(port, "GET", "/items/1", undefined, many)).toMatchObject({
      status: 431,
      json: { code: "resource_exhausted" },
    });
    const large = await exchangeBytes(
      `GET / HTTP/1.1\r\nhost: x\r\nbig: ${"x".repeat(limits.headerBytes)}\r\n\r\n`,
    );
    expect(large).toMatch(/^HTTP\/1.1 431/);
    expect(await exchangeBytes("nonsense\r\n\r\n")).toMatch(/^HTTP\/1.1 400/);
  });

  it("serves a client that has closed its sending side", async () => {
    const answer = await exchangeBytes("GET /items/7 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", {
      end: true,
    });
    expect(answer).toContain('{"id":"7"');
  });

  it("forgets a client that goes away in the middle of its body", async () => {
    const socket = connect({ port, host: "127.0.0.1" });
    socket.write("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{");
    while (tracked.open === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    socket.destroy();
    while (tracked.open > 0) await new Promise((resolve) => setTimeout(resolve, 5));
    expect((await send(port, "GET", "/items/1", undefined, {})).status).toBe(200);
  });

  it("counts no request that is refused as one of the sandbox, an upgrade neither", async () => {
    const refused = { "x-refuse": "1" };
    const upgrade = { ...refused, connection: "upgrade", upgrade: "websocket" };
    for (const headers of [refused, upgrade])
      expect((await send(port, "GET", "/items/1", undefined, headers)).status).toBe(401);
    expect(tracked.begun).toBe(0);
    expect((await send(port, "GET", "/items/1", undefined, {})).status).toBe(200);
    expect(tracked.begun).toBe(1);
  });

  it("lets the rest of a body pass that a handler began to read and gave up", async () => {
    const body = "x".repeat(1024 * 1024);
    const refused = `POST /first-chunk HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
    const next = "GET /items/7 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    const answers = await exchangeBytes(`${refused}${next}`);
    expect(answers).toContain("the first chunk is wrong");
    expect(answers).toContain('{"id":"7"');
  });
});
