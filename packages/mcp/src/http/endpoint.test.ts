import { type IncomingMessage, request as httpRequest } from "node:http";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { createMcpServer } from "../server.ts";
import { FakeGateway } from "../testing/fake-gateway.ts";
import { type McpEndpoint, type McpEndpointOptions, openMcpEndpoint } from "./endpoint.ts";

let gateway: FakeGateway;
let endpoint: McpEndpoint;

beforeEach(async () => {
  gateway = await FakeGateway.start();
});
afterEach(async () => {
  await endpoint.close(0);
  await gateway[Symbol.asyncDispose]();
});

async function open(options: Partial<McpEndpointOptions> = {}): Promise<void> {
  endpoint = await openMcpEndpoint({
    address: "127.0.0.1",
    port: 0,
    hosts: [],
    serverFor: (cloche) => createMcpServer({ cloche, version: "0.1.0" }),
    keys: gateway,
    ...options,
  });
}

interface Answer {
  status: number;
  headers: Record<string, unknown>;
  text: string;
}

/** Sent as it stands: fetch would not let us set Host. */
function ask(
  headers: Record<string, string>,
  body?: unknown,
  method = "POST",
  path = "/mcp",
): Promise<Answer> {
  const { promise, resolve, reject } = Promise.withResolvers<Answer>();
  const accept = "application/json, text/event-stream";
  const all = { accept, ...(body !== undefined && { "content-type": "application/json" }), ...headers };
  const request = httpRequest(
    { port: endpoint.port, host: "127.0.0.1", path, method, headers: all },
    (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (piece: string) => (text += piece));
      response.on("end", () =>
        resolve({ status: response.statusCode ?? 0, headers: response.headers, text }),
      );
      response.on("error", reject);
    },
  );
  request.on("error", reject);
  request.end(body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body));
  return promise;
}

const initialize = {
  jsonrpc: "2.0",
  id: 1,
  method: "initialize",
  params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "test", version: "1" } },
};
const list = { jsonrpc: "2.0", id: 2, method: "tools/list", params: {} };
const withKey = (key = "key-a") => ({ authorization: `Bearer ${key}` });

async function openSession(key = "key-a"): Promise<string> {
  const answer = await ask(withKey(key), initialize);
  expect(answer.status, answer.text).toBe(200);
  return String(answer.headers["mcp-session-id"]);
}
const inSession = (id: string, key = "key-a") => ask({ ...withKey(key), "mcp-session-id": id }, list);

/** The stream of a session, which stays open. */
async function openStream(id: string, key = "key-a"): Promise<IncomingMessage> {
  const headers = { accept: "text/event-stream", ...withKey(key), "mcp-session-id": id };
  const request = httpRequest({ port: endpoint.port, host: "127.0.0.1", path: "/mcp", headers });
  return await new Promise((resolve, reject) => request.on("response", resolve).on("error", reject).end());
}

describe("a key", () => {
  test.each([
    ["none", {}],
    ["a wrong one", withKey("key-c")],
    ["another scheme", { authorization: "Basic a2V5LWE=" }],
    ["two words", { authorization: "Bearer key-a key-b" }],
    ["one that is far too long", withKey("k".repeat(600))],
  ])("%s is 401 and opens nothing", async (_what, headers) => {
    await open();
    const answer = await ask(headers, initialize);
    expect(answer.status).toBe(401);
    expect(answer.headers["www-authenticate"]).toMatch(/^Bearer/);
    expect(endpoint.sessions).toBe(0);
  });

  test("revoked ends its sessions' calls at once", async () => {
    await open();
    const id = await openSession();
    expect((await inSession(id)).status).toBe(200);
    gateway.keys.delete("key-a");
    expect((await inSession(id)).status).toBe(401);
  });

  test("that is revoked ends its open streams and its sessions, and those of no other key", async () => {
    await open({ limits: { keyCheckMs: 20 } });
    const stream = await openStream(await openSession("key-a"), "key-a");
    const others = await openStream(await openSession("key-a2"), "key-a2");
    const ended = new Promise((resolve) => stream.on("close", resolve).on("error", resolve).resume());
    gateway.keys.delete("key-a");
    await ended;
    await expect.poll(() => endpoint.sessions).toBe(1);
    expect(others.destroyed).toBe(false);
    others.destroy();
  });

  test("whose state cannot be read now keeps its streams", async () => {
    let looks = 0;
    const teamOf = async (key: string): Promise<string> => {
      if (++looks > 2) throw new Error(`the database is away, so nobody knows ${key}`);
      return "team-a";
    };
    await open({ limits: { keyCheckMs: 5 }, keys: { clientFor: gateway.clientFor, teamOf } });
    const stream = await openStream(await openSession());
    await expect.poll(() => looks).toBeGreaterThan(5);
    expect(stream.destroyed).toBe(false);
    stream.destroy();
  });

  test("does not open another key's session", async () => {
    await open();
    const id = await openSession("key-a");
    expect((await inSession(id, "key-b")).status).toBe(404);
    expect((await ask({ ...withKey("key-b"), "mcp-session-id": id }, undefined, "DELETE")).status).toBe(404);
    expect((await inSession(id)).status).toBe(200);
  });

  test("beyond its rate, and a gateway that is not ready, are told", async () => {
    await open();
    gateway.failure = { status: 429, code: "resource_exhausted", message: "slow down" };
    expect(await ask(withKey(), initialize)).toMatchObject({
      status: 429,
      text: expect.stringContaining("slow down") as string,
    });
    gateway.failure = { status: 503, code: "unavailable", message: "the gateway is stopping" };
    expect((await ask(withKey(), initialize)).status).toBe(503);
  });
});

describe("a web page that points its own name at this machine", () => {
  test.each([
    ["its name in Host", { host: "evil.example:7083" }],
    ["its Origin", { origin: "http://evil.example" }],
    ["an Origin that is none", { origin: "null" }],
    ["a name that only begins like ours", { host: "localhost.evil.example" }],
  ])("is refused by %s, with a good key too", async (_what, headers) => {
    await open();
    const { calls } = gateway;
    expect((await ask({ ...withKey(), ...headers }, initialize)).status).toBe(403);
    expect(gateway.calls).toBe(calls);
  });

  test.each([{ host: "localhost:1" }, { host: "[::1]" }, { origin: "http://localhost:6274" }])(
    "while %o is let in",
    async (headers) => {
      await open();
      expect((await ask({ ...withKey(), ...headers }, initialize)).status).toBe(200);
    },
  );

  test("names of the settings are let in, in Host and Origin", async () => {
    await open({ hosts: ["mcp.example.com"] });
    const headers = { host: "mcp.example.com", origin: "https://mcp.example.com" };
    expect((await ask({ ...withKey(), ...headers }, initialize)).status).toBe(200);
  });
});

describe("sessions", () => {
  test("are bounded: the one that was idle longest makes room, and one in use never does", async () => {
    await open({ limits: { sessionsPerKey: 2, sessions: 3 } });
    const first = await openSession();
    const second = await openSession();
    await inSession(first);
    const third = await openSession();
    expect(endpoint.sessions).toBe(2);
    expect((await inSession(second)).status).toBe(404);
    const others = await openSession("key-b");
    expect(endpoint.sessions).toBe(3);

    // Streams that stay open.
    const streams = [first, third].map((id) => {
      const headers = { accept: "text/event-stream", ...withKey(), "mcp-session-id": id };
      return httpRequest({ port: endpoint.port, host: "127.0.0.1", path: "/mcp", headers });
    });
    await Promise.all(streams.map((one) => new Promise((resolve) => one.on("response", resolve).end())));
    const refused = await ask(withKey(), initialize);
    expect(refused).toMatchObject({
      status: 429,
      text: expect.stringContaining("2 sessions are in use") as string,
    });
    expect((await inSession(others, "key-b")).status).toBe(200);
    for (const one of streams) one.destroy();
    await expect.poll(async () => (await ask(withKey(), initialize)).status).toBe(200);
  });

  test("of a team are bounded, whatever its keys, and no other team's make room for them", async () => {
    await open({ limits: { sessionsPerTeam: 2, sessions: 10 } });
    const others = await openSession("key-b");
    for (const key of ["key-a", "key-a2", "key-a", "key-a2"]) await openSession(key);
    expect(endpoint.sessions).toBe(3);
    expect((await inSession(others, "key-b")).status).toBe(200);
  });

  test("of the team with the most make room when all places are taken, idle ones first", async () => {
    await open({ limits: { sessions: 3 } });
    const [first, second, third] = [await openSession(), await openSession("key-a2"), await openSession()];
    const streams = [await openStream(first), await openStream(second, "key-a2")];
    for (const stream of streams) stream.on("error", () => undefined).resume();
    await openSession("key-b");
    expect((await inSession(third)).status).toBe(404);
    expect(streams.map(({ destroyed }) => destroyed)).toEqual([false, false]);
    // Now all of the team's are in use; the other two teams get a place each all the same.
    const ofD = await openSession("key-d");
    expect((await inSession(first)).status).toBe(404);
    expect((await inSession(second, "key-a2")).status).toBe(200);
    expect((await inSession(ofD, "key-d")).status).toBe(200);
    const refused = await ask(withKey("key-a2"), initialize);
    expect(refused.status, refused.text).toBe(429);
    for (const stream of streams) stream.destroy();
  });

  test("that open at the same time are counted", async () => {
    await open({ limits: { sessionsPerTeam: 3 } });
    await Promise.all(Array.from({ length: 8 }, () => openSession()));
    expect(endpoint.sessions).toBe(3);
  });

  test("that nobody uses are closed", async () => {
    await open({ limits: { sessionIdleMs: 20, sweepMs: 10 } });
    await openSession();
    await expect.poll(() => endpoint.sessions).toBe(0);
  });

  test("whose client left before they began are not in use", async () => {
    const client = Promise.withResolvers<void>();
    let request: ReturnType<typeof httpRequest> | undefined;
    const serverFor: McpEndpointOptions["serverFor"] = (cloche) => {
      const server = createMcpServer({ cloche, version: "0.1.0" });
      const connect = server.connect.bind(server);
      server.connect = async (transport) => {
        request?.destroy();
        await client.promise;
        await new Promise((resolve) => setTimeout(resolve, 50));
        await connect(transport);
      };
      return server;
    };
    await open({ serverFor, limits: { sessionIdleMs: 200, sweepMs: 10 } });
    const headers = {
      ...withKey(),
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
    };
    request = httpRequest({ port: endpoint.port, host: "127.0.0.1", path: "/mcp", method: "POST", headers });
    request.on("error", () => undefined).on("close", () => client.resolve());
    request.end(JSON.stringify(initialize));
    await expect.poll(() => endpoint.sessions).toBe(1);
    await expect.poll(() => endpoint.sessions, { timeout: 3_000 }).toBe(0);
  });

  test("that could not begin leave nothing", async () => {
    await open();
    const answer = await ask({ ...withKey(), accept: "text/html" }, initialize);
    expect(answer.status).toBe(406);
    expect(endpoint.sessions).toBe(0);
  });

  test("end with DELETE, and must be opened before anything else", async () => {
    await open();
    const id = await openSession();
    expect((await ask({ ...withKey(), "mcp-session-id": id }, undefined, "DELETE")).status).toBe(200);
    expect((await inSession(id)).status).toBe(404);
    expect((await ask(withKey(), list)).status).toBe(400);
  });
});

describe("requests", () => {
  test("of one key are bounded", async () => {
    await open({ limits: { requestsPerKey: 1 } });
    const id = await openSession();
    const headers = { accept: "text/event-stream", ...withKey(), "mcp-session-id": id };
    const stream = httpRequest({ port: endpoint.port, host: "127.0.0.1", path: "/mcp", headers });
    await new Promise((resolve) => stream.on("response", resolve).end());
    expect((await inSession(id)).status).toBe(429);
    expect((await ask(withKey("key-b"), initialize)).status).toBe(200);
    stream.destroy();
    await expect.poll(async () => (await inSession(id)).status).toBe(200);
  });

  test("with bodies of one team have a bound of bytes together", async () => {
    await open({ limits: { bodyBytesPerTeam: 1_000 } });
    const begun = httpRequest({
      port: endpoint.port,
      host: "127.0.0.1",
      path: "/mcp",
      method: "POST",
      headers: { ...withKey(), "content-type": "application/json", "content-length": 900 },
    });
    begun.on("error", () => undefined).write("{");
    await expect.poll(async () => (await ask(withKey("key-a2"), initialize)).status).toBe(429);
    expect((await ask(withKey("key-b"), initialize)).status).toBe(200);
    begun.destroy();
    await expect.poll(async () => (await ask(withKey("key-a2"), initialize)).status).toBe(200);
  });

  test("without a length count as what they had, once they are read", async () => {
    await open({ limits: { bodyBytesPerTeam: 5 * 1_048_576 } });
    const chunked = { ...withKey(), "transfer-encoding": "chunked" };
    const id = String((await ask(chunked, initialize)).headers["mcp-session-id"]);
    const headers = { ...chunked, accept: "text/event-stream", "mcp-session-id": id };
    const stream = httpRequest({ port: endpoint.port, host: "127.0.0.1", path: "/mcp", headers });
    await new Promise((resolve) => stream.on("response", resolve).end());
    expect((await ask(chunked, initialize)).status).toBe(200);
    stream.destroy();
  });

  test("are answered for a team whose answers can be counted", async () => {
    const teams: string[] = [];
    await open({ watchAnswer: (_response, teamId) => void teams.push(teamId) });
    const id = await openSession("key-a");
    const stream = await openStream(id, "key-a");
    expect((await ask(withKey("key-c"), initialize)).status).toBe(401);
    expect((await ask(withKey("key-b"), list)).status).toBe(400);
    expect(teams).toEqual(["key-a", "key-a", "key-b"]);
    stream.destroy();
  });

  test("of one team are bounded", async () => {
    await open({ limits: { requestsPerTeam: 1 } });
    const id = await openSession();
    const stream = await openStream(id);
    expect((await ask(withKey("key-a2"), initialize)).status).toBe(429);
    expect((await ask(withKey("key-b"), initialize)).status).toBe(200);
    stream.destroy();
    await expect.poll(async () => (await ask(withKey("key-a2"), initialize)).status).toBe(200);
  });

  test.each([
    ["no JSON", "{", 400],
    ["no JSON-RPC", { hello: 1 }, 400],
    ["of too many values", { ...initialize, more: Array.from({ length: 50_001 }, () => ({})) }, 413],
    ["far too large", { ...initialize, more: "x".repeat(5 * 1_048_576) }, 413],
  ])("%s are told so", async (_what, body, status) => {
    await open();
    expect((await ask(withKey(), body)).status).toBe(status);
    expect(endpoint.sessions).toBe(0);
  });

  test("for another path are told where the endpoint is", async () => {
    await open();
    const answer = await ask(withKey(), initialize, "POST", "/");
    expect(answer).toMatchObject({ status: 404, text: expect.stringContaining("/mcp") as string });
    expect((await ask(withKey(), undefined, "GET", "/.well-known/oauth-protected-resource")).status).toBe(
      404,
    );
  });
});

test.each(["legacy", "auto"] as const)("the official client connects and lists, mode %s", async (mode) => {
  await open();
  const requestInit = { headers: withKey() };
  const transport = new StreamableHTTPClientTransport(new URL(`http://127.0.0.1:${endpoint.port}/mcp`), {
    requestInit,
  });
  const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode } });
  await client.connect(transport);
  expect(client.getProtocolEra()).toBe(mode === "legacy" ? "legacy" : "modern");
  expect((await client.listTools()).tools.map(({ name }) => name)).toContain("fork_sandbox");
  expect(endpoint.sessions).toBe(mode === "legacy" ? 1 : 0);
  await client.close();
});

test("a stop ends open streams and waits for nobody longer than it must", async () => {
  await open();
  const id = await openSession();
  const headers = { accept: "text/event-stream", ...withKey(), "mcp-session-id": id };
  const stream = httpRequest({ port: endpoint.port, host: "127.0.0.1", path: "/mcp", headers });
  const response = await new Promise<import("node:http").IncomingMessage>((resolve) =>
    stream.on("response", resolve).end(),
  );
  const ended = new Promise((resolve) => response.on("end", resolve).on("error", resolve).resume());
  stream.on("error", () => undefined);
  const beganMs = Date.now();
  await endpoint.close(100);
  await ended;
  expect(Date.now() - beganMs).toBeLessThan(2_000);
});
