import net from "node:net";
import { expect, test } from "vitest";
import { sharedPortAnswer } from "./shared-port.ts";
import { sandboxA, sandboxB } from "../testing/fake-gateway.ts";
import { baseDomain, Rig, until } from "../testing/rig.ts";
import { userServer } from "../testing/user-server.ts";

test("a token opens a port by path and by header; the server sees where it is, not the token nor a cookie", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const prefix = `/sandboxes/${sandboxA}/ports/${user.port}`;
  const sent = { ...(await rig.bearer()), cookie: "own=1", "x-forwarded-prefix": "/forged" };
  const byPath = await rig.askPlain(`${prefix}/a/../b?c`, { headers: sent });
  expect([byPath.status, user.seen[0]?.url]).toEqual([200, "/a/../b?c"]);
  const common = { "x-forwarded-proto": "http", "x-forwarded-host": `127.0.0.1:${rig.plainPort}` };
  expect(JSON.parse(byPath.body)).toMatchObject({ ...common, "x-forwarded-prefix": prefix });
  await rig.ask({ path: prefix, headers: { ...sent, host: "localhost" }, servername: "localhost" });
  expect(user.seen[1]).toMatchObject({ url: "/", headers: { "x-forwarded-proto": "https" } });

  const named = { ...sent, "x-sandbox-id": sandboxA, "x-sandbox-port": String(user.port) };
  await rig.askPlain("/a?b", { headers: named });
  expect([user.seen[2]?.url, user.seen[2]?.headers["x-forwarded-prefix"]]).toEqual(["/a?b", undefined]);
  await rig.askPlain(`/sandboxes/${sandboxA}/a`, { headers: named });
  expect(user.seen[3]?.url).toBe("/a");
  for (const { headers } of user.seen) {
    const hidden = [
      headers.authorization,
      headers.cookie,
      headers["x-sandbox-id"],
      headers["x-sandbox-port"],
    ];
    expect(hidden).toEqual([undefined, undefined, undefined, undefined]);
  }

  for (const authorization of ["Bearer x", `Bearer ${await rig.gateway.token(sandboxB)}`, undefined]) {
    const headers = authorization === undefined ? {} : { authorization };
    expect((await rig.askPlain(`${prefix}/`, { headers })).status).toBe(401);
  }
  const agents = await rig.askPlain(`/sandboxes/${sandboxA}/ports/${rig.agentPort}/`, { headers: sent });
  expect(agents.status).toBe(403);
  expect(user.seen).toHaveLength(4);
});

test("no link is opened and no link's cookie counts there, nor without TLS", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const { port } = user;
  const label = `${port}-${sandboxA}`;
  const cookie = `__Host-cloche=${await rig.gateway.portToken(sandboxA, port)}`;
  const host = `${label}.${baseDomain}`;
  expect((await rig.ask({ label, headers: { cookie } })).status).toBe(200);
  expect((await rig.askPlain("/", { headers: { host, cookie } })).status).toBe(401);
  const path = `/sandboxes/${sandboxA}/ports/${port}`;
  expect((await rig.askPlain(path, { headers: { cookie } })).status).toBe(401);
  const local = { host: "localhost", cookie };
  expect((await rig.ask({ path, servername: "localhost", headers: local })).status).toBe(401);
  rig.gateway.addLink("once", sandboxA, port, "token");
  const link = "/__cloche/link?token=once";
  const authorization = (await rig.bearer()).authorization;
  for (const headers of [{ authorization }, { authorization, host }])
    expect((await rig.askPlain(`${"host" in headers ? "" : path}${link}`, { headers })).status).toBe(404);
  expect(rig.gateway.redeemed).toEqual([]);
  expect((await rig.ask({ label, path: link })).status).toBe(303);
  // The server's own cookies belong to the port's domain, with or without TLS; the server never gets our cookie.
  const both = { host, authorization, cookie: `${cookie}; own=1` };
  expect(JSON.parse((await rig.askPlain("/", { headers: both })).body)).toMatchObject({ cookie: "own=1" });
});

test("an answer cannot speak for the whole origin, and its document has an origin of its own", async () => {
  await using rig = await Rig.start();
  using user = await userServer({
    "set-cookie": ["a=1", "b=2"],
    "service-worker-allowed": "/",
    "clear-site-data": '"*"',
    "alt-svc": 'h3=":443"',
    "strict-transport-security": "max-age=9",
    nel: "{}",
    "report-to": "{}",
    "www-authenticate": 'Basic realm="another sandbox\'s"',
    "accept-ch": "Sec-CH-UA-Model",
    vary: "accept",
    "content-security-policy": "default-src 'self'",
    "x-own": "kept",
  });
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [user.port] });
  const path = `/sandboxes/${sandboxA}/ports/${user.port}/`;
  const named = { "x-sandbox-id": sandboxA, "x-sandbox-port": String(user.port) };
  for (const answer of [await rig.askPlain(path), await rig.askPlain("/", { headers: named })]) {
    expect(answer.status).toBe(200);
    const names = Object.keys(answer.headers).sort();
    expect(names).toEqual([
      "connection",
      "content-security-policy",
      "date",
      "transfer-encoding",
      "vary",
      "x-own",
      "x-request-id",
    ]);
    const policy = String(answer.headers["content-security-policy"]);
    expect(policy).toMatch(/^default-src 'self', sandbox .*allow-scripts/);
    expect(policy).not.toContain("allow-same-origin");
    expect(answer.headers.vary).toBe("accept, x-sandbox-id, x-sandbox-port");
  }
  const own = await rig.ask({ label: `${user.port}-${sandboxA}` });
  expect(own.headers["set-cookie"]).toEqual(["a=1", "b=2"]);
  expect(own.headers["content-security-policy"]).toBe("default-src 'self'");
  expect([own.headers["www-authenticate"], own.headers.vary]).toEqual([expect.any(String), "accept"]);
});

test("a browser's cache keeps the answers of sandboxes and ports apart that are asked by one URL", async () => {
  await using rig = await Rig.start();
  const headers = { ...(await rig.bearer()), origin: "https://app.example" };
  for (const path of ["/v1/x", "/v1/checkpoints"])
    for (const [url, named] of [
      [path, { "x-sandbox-id": sandboxA }],
      [`/sandboxes/${sandboxA}${path}`, {}],
    ] as const) {
      const { headers: got } = await rig.askPlain(url, { headers: { ...headers, ...named } });
      expect([url, got.vary]).toEqual([url, "x-sandbox-id, x-sandbox-port"]);
    }
  expect((await rig.ask({ path: "/v1/x", headers })).headers.vary).toBeUndefined();
});

test("no service worker's script is served there, of a port or of the data plane", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), publicPorts: [user.port] });
  const headers = { "service-worker": "script" };
  for (const path of [`/ports/${user.port}/worker.js`, "/v1/files?path=/worker.js"])
    expect((await rig.askPlain(`/sandboxes/${sandboxA}${path}`, { headers })).status).toBe(403);
  expect(user.seen).toHaveLength(0);
  expect((await rig.ask({ label: `${user.port}-${sandboxA}`, headers })).status).toBe(200);
});

test("a WebSocket of a port goes through, without its cookies", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const { authorization } = await rig.bearer();
  const socket = net.connect(rig.plainPort, "127.0.0.1");
  socket.write(
    `GET /sandboxes/${sandboxA}/ports/${user.port}/socket HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: ${authorization}\r\n` +
      "Cookie: a=1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
  );
  let text = "";
  socket.on("data", (piece) => (text += piece.toString()));
  await until(() => text.endsWith("hello"));
  socket.destroy();
  expect(text).toMatch(/^HTTP\/1\.1 101 /);
  expect(text).not.toMatch(/set-cookie/i);
  expect([user.seen[0]?.url, user.seen[0]?.headers.cookie]).toEqual(["/socket", undefined]);
});

test.each([
  ["/login?x=/y", "/sandboxes/s/ports/1/login?x=/y"],
  ["/", "/sandboxes/s/ports/1/"],
  ["http://127.0.0.1:7081/login", "http://127.0.0.1:7081/sandboxes/s/ports/1/login"],
  ["HTTPS://127.0.0.1:7081", "HTTPS://127.0.0.1:7081/sandboxes/s/ports/1"],
  ["/sandboxes/s/ports/10/x", "/sandboxes/s/ports/1/sandboxes/s/ports/10/x"],
  ["/\\evil.example", "/sandboxes/s/ports/1/\\evil.example"],
  // Not changed: relative, on another server, or with the prefix already.
  ["next", "next"],
  ["?page=2", "?page=2"],
  ["", ""],
  ["//other.example/x", "//other.example/x"],
  ["https://other.example/x", "https://other.example/x"],
  ["http://127.0.0.1:7082/x", "http://127.0.0.1:7082/x"],
  ["/sandboxes/s/ports/1/x", "/sandboxes/s/ports/1/x"],
  ["/sandboxes/s/ports/1", "/sandboxes/s/ports/1"],
  ["http://127.0.0.1:7081/sandboxes/s/ports/1?x", "http://127.0.0.1:7081/sandboxes/s/ports/1?x"],
])("Location: %s leads to %s", (location, expected) => {
  const place = { prefix: "/sandboxes/s/ports/1", host: "127.0.0.1:7081" };
  expect(sharedPortAnswer(["Location", location], place).slice(0, 2)).toEqual(["Location", expected]);
  // When headers name the port, its paths need no prefix.
  const byHeader = sharedPortAnswer(["Location", location], { ...place, prefix: "" });
  expect(byHeader.slice(0, 2)).toEqual(["Location", location]);
});
