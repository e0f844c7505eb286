import { request as httpRequest } from "node:http";
import { connect } from "node:net";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { createClient } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { limits } from "@cloche/protocol";
import { SandboxService } from "@cloche/protocol/public";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
let url: string;
beforeAll(async () => {
  f = await openFixture({ config: { corsOrigins: ["https://app.example"] } });
  url = `http://127.0.0.1:${f.listener.port}`;
});
afterAll(() => f.close());

const path = "/cloche.public.v1.SandboxService/ListSandboxes";
const post = (at: string, init: RequestInit = {}) =>
  fetch(url + at, {
    method: "POST",
    body: "{}",
    ...init,
    headers: { "content-type": "application/json", authorization: `Bearer ${f.secret}`, ...init.headers },
  });

describe("the one error shape", () => {
  it.each([
    ["an unknown path", () => post("/nothing"), 404, "not_found", /nothing at \/nothing/],
    [
      "an unknown method",
      () => post("/cloche.public.v1.SandboxService/Explode"),
      404,
      "unimplemented",
      /SandboxService has no method "Explode"; it has CreateSandbox/,
    ],
    [
      "an unknown method of the alias",
      () => post("/svc.public.v1.SandboxService/Explode"),
      404,
      "unimplemented",
      /no method/,
    ],
    ["GET", () => fetch(url + path), 405, "invalid_argument", /method GET is not allowed .* calls are POST/],
    ["PUT", () => post(path, { method: "PUT" }), 405, "invalid_argument", /PUT/],
    [
      "a wrong content type",
      () => post(path, { headers: { "content-type": "text/plain" } }),
      415,
      "invalid_argument",
      /content-type "text\/plain" is not supported; send application\/json/,
    ],
    ["malformed JSON", () => post(path, { body: "{" }), 400, "invalid_argument", /not valid JSON/],
    [
      "JSON that is no object",
      () => post(path, { body: "[]" }),
      400,
      "invalid_argument",
      /must be a JSON object/,
    ],
    ["JSON null", () => post(path, { body: "null" }), 400, "invalid_argument", /must be a JSON object/],
    [
      "a wrong type",
      () => post(path, { body: '{"page_size":"many"}' }),
      400,
      "invalid_argument",
      /^page_size: expected number \(uint32\), got "many"$/,
    ],
    [
      "a number in a string",
      () => post(path, { body: '{"page_size":"5"}' }),
      400,
      "invalid_argument",
      /^page_size: expected number \(uint32\), got "5"$/,
    ],
    [
      "a fraction in a string",
      () => post(path.replace("ListSandboxes", "CreateSandbox"), { body: '{"cpus":"0.5"}' }),
      400,
      "invalid_argument",
      /^cpus: expected number \(float64\), got "0.5"$/,
    ],
    [
      "the number of an enum",
      () => post(path, { body: '{"states":["SANDBOX_STATE_RUNNING",2]}' }),
      400,
      "invalid_argument",
      /^states\[1\] is 2; it must be a sandbox state such as SANDBOX_STATE_RUNNING$/,
    ],
    [
      "an enum's name that there is not",
      () => post(path, { body: '{"states":["RUNNING"]}' }),
      400,
      "invalid_argument",
      /^states\[0\] is "RUNNING"; it must be a sandbox state such as SANDBOX_STATE_RUNNING$/,
    ],
    [
      "a body that is not gzip as it says",
      () => post(path, { headers: { "content-encoding": "gzip" } }),
      400,
      "invalid_argument",
      /./,
    ],
    [
      "an unknown encoding",
      () => post(path, { headers: { "content-encoding": "zip" } }),
      501,
      "unimplemented",
      /unknown compression/,
    ],
    [
      "a body one byte too large",
      () => post(path, { body: `{"page_token":"${"x".repeat(1_048_576 - 16)}"}`.slice(0, 1_048_577) }),
      429,
      "resource_exhausted",
      /larger than 1048576 bytes/,
    ],
    [
      "a compressed body that unpacks to too much",
      () =>
        post(path, {
          body: gzipSync(`{"page_token":"${"x".repeat(2_000_000)}"}`),
          headers: { "content-encoding": "gzip" },
        }),
      429,
      "resource_exhausted",
      /unpacks to more than 1048576 bytes/,
    ],
    [
      "too many headers",
      () =>
        post(path, { headers: Object.fromEntries(Array.from({ length: 210 }, (_, i) => [`x-h${i}`, "1"])) }),
      431,
      "resource_exhausted",
      /more than 200 headers/,
    ],
    ["a URL that is too long", () => post(`${path}?${"x".repeat(40_000)}`), 414, "invalid_argument", /URL/],
    [
      "a bad timeout header",
      () => post(path, { headers: { "connect-timeout-ms": "soon" } }),
      400,
      "invalid_argument",
      /./,
    ],
    ["POST on health", () => post("/healthz"), 405, "invalid_argument", /GET/],
  ])("answers %s", async (_name, call, status, code, message) => {
    const response = await call();
    const body = (await response.json()) as { code: string; message: string };
    expect([response.status, body.code]).toEqual([status, code]);
    expect(body.message).toMatch(message);
    expect(response.headers.get("x-request-id")).toMatch(/^req-/);
    expect(response.headers.get("content-type")).toBe("application/json");
  });

  it("takes a body of exactly 1 MiB", async () => {
    const body = `{"unknown":"${"x".repeat(1_048_576 - 14)}"}`;
    expect(body.length).toBe(1_048_576);
    const headers = { "x-cloche-unknown-fields": "ignore" };
    expect((await post(path, { body, headers })).status).toBe(200);
  });

  it("takes an empty body as an empty message", async () => {
    expect((await post(path, { body: "" })).status).toBe(200);
  });

  it.each([
    ["plain", (text: string) => text, {}],
    ["compressed", (text: string) => gzipSync(text), { "content-encoding": "gzip" }],
  ])("refuses unknown fields of a %s body, unless the caller has them ignored", async (_, pack, headers) => {
    const refused = await post(path, { body: pack('{"newer":{"than":"us"}}'), headers });
    expect(refused.status).toBe(400);
    expect(await refused.text()).toContain("newer");
    const ignored = { ...headers, "x-cloche-unknown-fields": "ignore" };
    expect((await post(path, { body: pack('{"newer":{"than":"us"}}'), headers: ignored })).status).toBe(200);
  });

  it("takes a compressed body", async () => {
    const response = await post(path, { body: gzipSync("{}"), headers: { "content-encoding": "gzip" } });
    expect(response.status).toBe(200);
  });
});

describe("authentication", () => {
  it.each([
    ["no header", {}, /is missing; send "Bearer <API_KEY>"/],
    ["another scheme", { authorization: "Basic abc" }, /is not of the form "Bearer <API_KEY>"/],
    ["no key", { authorization: "Bearer " }, /is not of the form/],
    ["an unknown key", { authorization: "Bearer cloche_unknown" }, /is unknown$/],
    [
      "a data plane token",
      { authorization: "Bearer a.b.c" },
      /takes the team's API key, not a data plane token/,
    ],
    ["a key with more behind it", { authorization: "Bearer x y" }, /is not of the form/],
  ])("refuses %s", async (_name, headers: Record<string, string>, message) => {
    const response = await fetch(url + path, {
      method: "POST",
      body: "{}",
      headers: { "content-type": "application/json", ...headers },
    });
    const body = (await response.json()) as { code: string; message: string };
    expect([response.status, body.code]).toEqual([401, "unauthenticated"]);
    expect(body.message).toMatch(message);
    expect(response.headers.get("www-authenticate")).toBe("Bearer");
  });

  it("is asked of every method before the body is read", async () => {
    for (const { name } of SandboxService.methods) {
      expect((await f.call(name, "not json", { secret: "wrong" })).body.code).toBe("unauthenticated");
    }
    for (const name of ["CreateApiKey", "ListApiKeys", "RevokeApiKey"]) {
      const answer = await f.call(name, "{}", { secret: "wrong", service: "cloche.public.v1.ApiKeyService" });
      expect(answer.body.code).toBe("unauthenticated");
    }
  });

  it("takes the scheme in any case", async () => {
    expect((await post(path, { headers: { authorization: `bearer ${f.secret}` } })).status).toBe(200);
  });
});

describe("request ids", () => {
  it("keeps a sane one of the caller and replaces others", async () => {
    expect((await post(path, { headers: { "x-request-id": "mine-1" } })).headers.get("x-request-id")).toBe(
      "mine-1",
    );
    const long = await post(path, { headers: { "x-request-id": "x".repeat(300) } });
    expect(long.headers.get("x-request-id")).toMatch(/^req-[a-z0-9]{20}$/);
  });
});

describe("health", () => {
  it("answers without a key", async () => {
    for (const at of ["/healthz", "/readyz"]) {
      const response = await fetch(url + at);
      expect([response.status, await response.json()]).toEqual([200, { status: "ok" }]);
    }
    expect((await fetch(`${url}/healthz`, { method: "HEAD" })).status).toBe(200);
  });

  it("is not ready while the host is silent", async () => {
    f.host.breakStreams();
    await expect
      .poll(async () => {
        const response = await fetch(`${url}/readyz`);
        return [response.status, ((await response.json()) as { code?: string }).code];
      })
      .toEqual([503, "unavailable"]);
    await f.clock.advance(200);
    expect((await fetch(`${url}/readyz`)).status).toBe(200);
  });
});

describe("cross-origin requests", () => {
  const preflight = (origin: string) =>
    fetch(url + path, {
      method: "OPTIONS",
      headers: {
        origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
      },
    });

  it("answers the preflight of an allowed origin", async () => {
    const response = await preflight("https://app.example");
    expect(response.status).toBe(204);
    expect(response.headers.get("access-control-allow-origin")).toBe("https://app.example");
    expect(response.headers.get("access-control-allow-headers")).toContain("authorization");
    expect(response.headers.get("access-control-allow-methods")).toContain("POST");
  });

  it("allows nothing to other origins", async () => {
    expect((await preflight("https://evil.example")).headers.get("access-control-allow-origin")).toBeNull();
    const response = await post(path, { headers: { origin: "https://evil.example" } });
    expect(response.headers.get("access-control-allow-origin")).toBeNull();
  });

  it("exposes the request id, on errors too", async () => {
    const response = await post(path, { body: "{", headers: { origin: "https://app.example" } });
    expect(response.headers.get("access-control-allow-origin")).toBe("https://app.example");
    expect(response.headers.get("access-control-expose-headers")).toContain("x-request-id");
  });
});

describe("other clients of the same proto", () => {
  it.each([
    ["Connect over HTTP/1.1", () => createConnectTransport({ baseUrl: url, httpVersion: "1.1" })],
    [
      "Connect binary over HTTP/2",
      () => createConnectTransport({ baseUrl: url, httpVersion: "2", useBinaryFormat: true }),
    ],
    ["gRPC over HTTP/2", () => createGrpcTransport({ baseUrl: url })],
    ["gRPC-Web over HTTP/1.1", () => createGrpcWebTransport({ baseUrl: url, httpVersion: "1.1" })],
  ])("%s works, errors included", async (_name, transport) => {
    const client = createClient(SandboxService, transport());
    const headers = { authorization: `Bearer ${f.secret}` };
    const { sandbox } = await client.createSandbox({ name: "typed" }, { headers });
    expect(sandbox?.name).toBe("typed");
    await expect(client.getSandbox({ id: "sbx-none" }, { headers })).rejects.toMatchObject({
      rawMessage: 'id: there is no sandbox "sbx-none"',
    });
    await expect(client.listSandboxes({})).rejects.toThrow(/unauthenticated/);
  });
});

describe("protobuf that is none", () => {
  const framed = (message: Buffer, flags = 0): Buffer => {
    const prefix = Buffer.alloc(5);
    prefix.writeUInt8(flags);
    prefix.writeUInt32BE(message.length, 1);
    return Buffer.concat([prefix, message]);
  };
  const garbage = Buffer.from([0x0a, 0xff, 0xff, 0xff, 0x0f, 0x41]);
  it.each<[string, Buffer, Record<string, string>]>([
    ["application/proto", garbage, {}],
    ["application/proto", Buffer.from([0x0a, 0x02, 0xff, 0xfe]), {}], // a string that is no UTF-8
    ["application/proto", gzipSync(garbage), { "content-encoding": "gzip" }],
    ["application/proto", brotliCompressSync(garbage), { "content-encoding": "br" }],
    ["application/proto", garbage, { "content-encoding": "gzip" }],
    ["application/proto", gzipSync("{}").subarray(0, 12), { "content-encoding": "gzip" }],
    ["application/json", gzipSync("{}").subarray(0, 12), { "content-encoding": "gzip" }],
    ["application/json", Buffer.from([1, 2, 3]), { "content-encoding": "br" }],
  ])("in %s is refused as the caller's", async (contentType, body, more) => {
    const response = await post(path, {
      body: new Uint8Array(body),
      headers: { "content-type": contentType, ...more },
    });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ code: "invalid_argument" });
  });

  it.each<[string, Buffer, Record<string, string>]>([
    ["application/grpc-web+proto", framed(garbage), {}],
    ["application/grpc-web", framed(garbage).subarray(0, 8), {}],
    ["application/grpc-web", framed(garbage).subarray(0, 3), {}],
    ["application/grpc-web", framed(gzipSync(garbage), 1), { "grpc-encoding": "gzip" }],
  ])("in %s too", async (contentType, body, more) => {
    const response = await post(path, {
      body: new Uint8Array(body),
      headers: { "content-type": contentType, ...more },
    });
    const answer = `${response.headers.get("grpc-status")} ${await response.text()}`;
    expect(answer).toMatch(/^3 |grpc-status: 3\r/);
  });
});

describe("protobuf of very many fields", () => {
  const fields = Buffer.alloc(3 * (limits.protoFields + 1), Buffer.of(0xf8, 0x01, 0));
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(fields.length, 1);
  const call = (contentType: string, body: Buffer, more: Record<string, string> = {}) =>
    post(path, { body: new Uint8Array(body), headers: { "content-type": contentType, ...more } });

  it.each<[string, Buffer, Record<string, string>]>([
    ["as they are", fields, {}],
    ["compressed", gzipSync(fields), { "content-encoding": "gzip" }],
  ])("is refused, %s", async (_how, body, more) => {
    const response = await call("application/proto", body, more);
    expect(response.status).toBe(429);
    expect(await response.text()).toContain("fields");
  });

  it("is refused in the first of several frames", async () => {
    const response = await call("application/grpc-web", Buffer.concat([prefix, fields, prefix]));
    expect(`${response.headers.get("grpc-message")} ${await response.text()}`).toMatch(
      /more%20than%2010000%20fields/,
    );
  });
});

describe("what is hardly HTTP", () => {
  const raw = (text: string): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect(f.listener.port, "127.0.0.1", () => socket.write(text));
      let answer = "";
      socket.on("data", (chunk) => {
        answer += chunk.toString();
      });
      socket.on("close", () => resolve(answer));
      socket.on("error", reject);
    });

  it.each([
    ["garbage", "hello there\r\n\r\n", /^HTTP\/1\.1 400 /, '"invalid_argument"'],
    [
      "headers without end",
      `POST ${path} HTTP/1.1\r\n${"x-long: y\r\n".repeat(10_000)}`,
      /^HTTP\/1\.1 431 /,
      '"resource_exhausted"',
    ],
    [
      "a body length that is no number",
      `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n`,
      /^HTTP\/1\.1 400 /,
      '"invalid_argument"',
    ],
  ])("answers %s in the one shape", async (_name, text, status, code) => {
    const answer = await raw(text);
    expect(answer).toMatch(status);
    expect(answer).toContain(`"code":${code}`);
    expect(answer).toContain("x-request-id: req-");
  });

  it("goes on after a client that vanishes in the middle of its body", async () => {
    await new Promise<void>((resolve) => {
      const request = httpRequest(url + path, {
        method: "POST",
        headers: {
          "content-type": "application/json",
          "content-length": "100",
          authorization: `Bearer ${f.secret}`,
        },
      });
      request.on("error", () => resolve());
      request.write("{", () => request.destroy());
      request.on("close", () => resolve());
    });
    expect((await post(path)).status).toBe(200);
  });

  it("works without a Host header and with HTTP/1.0", async () => {
    const answer = await raw(
      `POST ${path} HTTP/1.0\r\ncontent-type: application/json\r\nauthorization: Bearer ${f.secret}\r\ncontent-length: 2\r\n\r\n{}`,
    );
    expect(answer).toMatch(/^HTTP\/1\.1 200 /);
  });

  it("splits a preface that comes byte by byte into what it is", async () => {
    const answer = await new Promise<string>((resolve, reject) => {
      const writeByteByByte = async (): Promise<void> => {
        const text = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        for (const byte of text) {
          socket.write(byte);
          await new Promise((next) => setImmediate(next));
        }
      };
      const socket = connect(f.listener.port, "127.0.0.1", () => void writeByteByByte());
      let got = "";
      socket.on("data", (chunk) => {
        got += chunk.toString();
      });
      socket.on("close", () => resolve(got));
      socket.on("error", reject);
    });
    expect(answer).toMatch(/^HTTP\/1\.1 200 /);
  });
});
