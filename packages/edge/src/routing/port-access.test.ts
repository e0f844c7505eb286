import { expect, test } from "vitest";
import { sandboxA, sandboxB } from "../testing/fake-gateway.ts";
import { baseDomain, Rig, until } from "../testing/rig.ts";
import { userServer } from "../testing/user-server.ts";

test("the sandbox's token opens a port, and the server behind never sees it", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const authorization = `Bearer ${await rig.gateway.token(sandboxA)}`;
  const label = `${user.port}-${sandboxA}`;
  const answer = await rig.ask({ label, path: "/a/../b?c", headers: { authorization, cookie: "own=1" } });
  expect(answer.status).toBe(200);
  expect(answer.headers["set-cookie"]).toEqual(["session=1"]);
  expect(user.seen[0]?.url).toBe("/a/../b?c");
  const headers = JSON.parse(answer.body) as Record<string, string>;
  expect(headers.authorization).toBeUndefined();
  expect(headers).toMatchObject({
    host: rig.host(label),
    cookie: "own=1",
    "x-forwarded-proto": "https",
    "x-forwarded-host": rig.host(label),
    "x-forwarded-for": "127.0.0.1",
  });
  for (const other of [undefined, "rubbish", await rig.gateway.token(sandboxB)]) {
    const refused = await rig.ask({
      label,
      headers: other === undefined ? {} : { authorization: `Bearer ${other}` },
    });
    expect(refused.status).toBe(401);
    expect(refused.headers["www-authenticate"]).toBe("Bearer");
  }
  expect(user.seen).toHaveLength(1);
});

test("a one-time link gives a cookie that opens the port, once, for that host alone", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const label = `${user.port}-${sandboxA}`;
  rig.gateway.addLink("one-time", sandboxA, user.port, await rig.gateway.portToken(sandboxA, user.port));
  const path = "/__cloche/link?token=one-time&path=%2Fapp%3Fx%3D1";
  const redirect = await rig.ask({ label, path });
  expect(redirect.status).toBe(303);
  expect(redirect.headers).toMatchObject({ location: "/app?x=1", "cache-control": "no-store" });
  const setCookie = redirect.headers["set-cookie"]?.[0] ?? "";
  expect(setCookie).toMatch(
    /^__Host-cloche=[\w.-]+; Path=\/; Max-Age=3[56]\d\d; HttpOnly; Secure; SameSite=Lax$/,
  );
  expect((await rig.ask({ label, path })).status).toBe(401);

  const cookie = `${setCookie.split(";")[0]}; theme=dark`;
  const answer = await rig.ask({ label, path: "/app", headers: { cookie, authorization: "Basic dTpw" } });
  expect(answer.status).toBe(200);
  expect(JSON.parse(answer.body)).toMatchObject({ cookie: "theme=dark", authorization: "Basic dTpw" });
});

test("the cookie of a link opens its port of its sandbox, and nothing else", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  using other = await userServer();
  const label = `${user.port}-${sandboxA}`;
  const status = async (token: string, at = label): Promise<number> =>
    (await rig.ask({ label: at, headers: { cookie: `__Host-cloche=${token}` } })).status;
  const token = await rig.gateway.portToken(sandboxA, user.port);
  expect(await status(token)).toBe(200);

  expect(await status(token, `${other.port}-${sandboxA}`)).toBe(401);
  rig.gateway.set({ ...rig.gateway.routeOf(sandboxA), sandboxId: sandboxB });
  expect(await status(token, `${user.port}-${sandboxB}`)).toBe(401);
  const now = Math.floor(Date.now() / 1000);
  const changed: Record<string, unknown>[] = [
    { exp: now - 1 },
    { nbf: now + 60 },
    { exp: undefined },
    { iss: "https://other.test" },
    { port: other.port },
    { port: undefined },
    { sandbox_id: sandboxB },
    { aud: sandboxA },
    { aud: `port:${user.port}:${sandboxB}` },
  ];
  for (const claims of changed) {
    expect(await status(await rig.gateway.portToken(sandboxA, user.port, claims))).toBe(401);
  }
  // Each token has its place: a data plane token is refused in a cookie, a link's token in a header.
  expect(await status(await rig.gateway.token(sandboxA))).toBe(401);
  const authorization = `Bearer ${token}`;
  expect((await rig.ask({ label, headers: { authorization } })).status).toBe(401);
  expect(user.seen).toHaveLength(1);
  expect(other.seen).toHaveLength(0);
});

test("the agent's own port is nobody's to open", async () => {
  await using rig = await Rig.start();
  const label = `${rig.agentPort}-${sandboxA}`;
  const authorization = `Bearer ${await rig.gateway.token(sandboxA)}`;
  const refused = await rig.ask({ label, headers: { authorization } });
  expect([refused.status, JSON.parse(refused.body).code]).toEqual([403, "permission_denied"]);
  const cookie = `__Host-cloche=${await rig.gateway.portToken(sandboxA, rig.agentPort)}`;
  expect((await rig.ask({ label, headers: { cookie } })).status).toBe(403);
  rig.gateway.set({ sandboxId: sandboxA, publicPorts: [rig.agentPort] });
  expect((await rig.ask({ label })).status).toBe(403);
  expect(rig.seen).toHaveLength(0);
});

test("a link keeps the visitor on the same host", async () => {
  await using rig = await Rig.start();
  const label = `3000-${sandboxA}`;
  for (const path of [
    "//evil.example",
    "/\\evil.example",
    "https://evil.example",
    "javascript:x",
    "/a\r\nSet-Cookie: x",
  ]) {
    const query = new URLSearchParams({ token: "t", path });
    expect((await rig.ask({ label, path: `/__cloche/link?${query}` })).status).toBe(400);
  }
  expect((await rig.ask({ label, path: "/__cloche/link" })).status).toBe(400);
  expect((await rig.ask({ label, method: "POST", path: "/__cloche/link?token=t" })).status).toBe(405);
});

test("pages of other origins cannot use the cookie", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const label = `${user.port}-${sandboxA}`;
  const cookie = `__Host-cloche=${await rig.gateway.portToken(sandboxA, user.port)}`;
  const ask = async (headers: Record<string, string>, method = "GET") =>
    (await rig.ask({ label, method, headers: { cookie, ...headers } })).status;
  expect(await ask({ origin: `https://${rig.host(label)}` })).toBe(200);
  expect(await ask({ "sec-fetch-site": "same-site", "sec-fetch-mode": "navigate" })).toBe(200);
  expect(await ask({ origin: `https://3000-${sandboxB}.${baseDomain}:${rig.port}` })).toBe(403);
  expect(await ask({ "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors" })).toBe(403);
  expect(await ask({ "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate" }, "POST")).toBe(403);
});

test("a public port needs no token, and a token sent all the same stays with the edge", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const label = `${user.port}-${sandboxA}`;
  rig.gateway.set({ sandboxId: sandboxA, publicPorts: [user.port] });
  expect((await rig.ask({ label })).status).toBe(200);
  const headers = {
    authorization: `Bearer ${await rig.gateway.token(sandboxA, { exp: 1 })}`,
    cookie: "__Host-cloche=x",
  };
  const answer = await rig.ask({ label, headers });
  expect(answer.status).toBe(200);
  expect(answer.body).not.toMatch(/authorization|cookie":"/);
  const own = await rig.ask({ label, headers: { authorization: "Bearer users-own-scheme" } });
  expect(JSON.parse(own.body)).toMatchObject({ authorization: "Bearer users-own-scheme" });
  rig.gateway.set({ sandboxId: sandboxA, publicPorts: [] });
  expect((await rig.ask({ label })).status).toBe(401);
  rig.gateway.set({ sandboxId: sandboxA, publicPorts: [], allPortsPublic: true });
  expect((await rig.ask({ label })).status).toBe(200);
  expect((await rig.ask({ label: `${rig.agentPort}-${sandboxA}` })).status).not.toBe(200);
});

test("WebSockets reach the user's server", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const label = `${user.port}-${sandboxA}`;
  const socket = await rig.connect(`${label}.${baseDomain}`);
  socket.write(
    `GET /ws HTTP/1.1\r\nHost: ${rig.host(label)}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: Bearer ${await rig.gateway.token(sandboxA)}\r\n\r\n`,
  );
  let text = "";
  socket.on("data", (chunk: Buffer) => (text += chunk.toString()));
  await until(() => text.includes("101"));
  socket.write("ping");
  await until(() => text.endsWith("ping"));
  expect(user.seen[0]?.headers.authorization).toBeUndefined();
  socket.destroy();
});

test("a port where nothing listens is 503, an unknown sandbox 404, a suspended one 503", async () => {
  await using rig = await Rig.start();
  const headers = { authorization: `Bearer ${await rig.gateway.token(sandboxA)}` };
  const closed = await rig.ask({ label: `1-${sandboxA}`, headers });
  expect(closed.status).toBe(503);
  expect(closed.body).toContain("nothing listens on port 1");
  expect((await rig.ask({ label: `3000-${sandboxB}`, headers })).status).toBe(404);
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED" });
  const suspended = await rig.ask({ label: `3000-${sandboxA}`, headers });
  expect(suspended.status).toBe(503);
  expect(suspended.body).toContain("SANDBOX_STATE_SUSPENDED");
});

test("a visitor of a public port wakes its sandbox, of another port who has its token alone", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const label = `${user.port}-${sandboxA}`;
  rig.gateway.set({
    sandboxId: sandboxA,
    state: "SANDBOX_STATE_SUSPENDED",
    autoResume: true,
    publicPorts: [user.port],
  });
  expect((await rig.ask({ label: `${user.port + 1}-${sandboxA}` })).status).toBe(401);
  expect(rig.gateway.woken).toEqual([]);
  expect((await rig.ask({ label })).status).toBe(200);
  expect(rig.gateway.woken).toEqual([sandboxA]);
});

const preflight = { origin: "https://app.example", "access-control-request-method": "PUT" };

test("a preflight of a port that is not public is answered by the edge, and reaches and wakes nothing", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const label = `${user.port}-${sandboxA}`;
  const ask = (headers: Record<string, string>, more: object = {}) =>
    rig.ask({ label, method: "OPTIONS", path: "/api?x=1", headers: { ...preflight, ...headers }, ...more });
  const permitted = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "PUT",
    "access-control-allow-headers": "authorization, x-own",
  };
  const wanted = { "access-control-request-headers": "authorization, x-own" };
  const answer = await ask({ ...wanted, authorization: "Basic dXNlcg==", cookie: "session=1" });
  expect(answer).toMatchObject({ status: 204, headers: permitted });
  expect(answer.headers["access-control-allow-credentials"]).toBeUndefined();
  const shared = `/sandboxes/${sandboxA}/ports/${user.port}/api`;
  expect((await rig.askPlain(shared, { method: "OPTIONS", headers: preflight })).status).toBe(204);
  expect((await ask({ "content-length": "7" }, { body: "do=this" })).status).toBe(204);
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true });
  expect((await ask({})).status).toBe(204);
  expect([rig.gateway.woken, user.seen]).toEqual([[], []]);
  expect(
    (await rig.ask({ label: `${user.port}-sbx-zzzzzzzzzzzzzzzzzzzz`, method: "OPTIONS", headers: preflight }))
      .status,
  ).toBe(404);
});

test("what is no preflight needs a token", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const ask = (method: string, headers: Record<string, string>) =>
    rig.ask({ label: `${user.port}-${sandboxA}`, method, path: "/api", headers });
  const answers = await Promise.all([
    ask("GET", preflight),
    ask("OPTIONS", { origin: "https://app.example" }),
    ask("OPTIONS", { "access-control-request-method": "PUT" }),
  ]);
  expect(answers.map(({ status }) => status)).toEqual([401, 401, 401]);
  expect(user.seen).toEqual([]);
});

test("no token reaches a port's server, in whatever header", async () => {
  await using rig = await Rig.start();
  using user = await userServer();
  const token = await rig.gateway.token(sandboxA);
  const label = `${user.port}-${sandboxA}`;
  const answer = await rig.ask({
    label,
    path: "/",
    headers: {
      authorization: `Bearer ${token}`,
      "sec-websocket-protocol": `chat, cloche.token.${token}, Cloche.Token.${token}`,
      "e2b-traffic-access-token": "of-an-e2b-client",
      "x-api-key": `e2b_${"0f".repeat(20)}`,
    },
  });
  expect(answer.status).toBe(200);
  expect(user.seen[0]?.headers["sec-websocket-protocol"]).toBe("chat");
  // Of a repeated header each value would be passed on.
  const host = `${label}.${baseDomain}`;
  const twice = [
    `GET / HTTP/1.1`,
    `Host: ${host}`,
    "Authorization: Basic dXNlcg==",
    `Authorization: Bearer ${token}`,
  ];
  const send = () => rig.raw([...twice, "Connection: close", "", ""].join("\r\n"), host);
  expect(await send()).toContain(" 401 ");
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_RUNNING", publicPorts: [user.port] });
  await until(async () => (await send()).includes(" 200 "));
  const visit = (headers: Record<string, string>) => rig.ask({ label, path: "/", headers });
  await visit({ authorization: `Bearer cloche_${"k".repeat(43)}` });
  const seen = JSON.stringify(user.seen.map(({ rawHeaders }) => rawHeaders));
  expect(seen).not.toContain(token);
  expect(seen).not.toMatch(/of-an-e2b-client|e2b_0f|cloche_k/);
  // The server's own keys are its own.
  await visit({ authorization: "Bearer sk-1", "x-api-key": "app-1" });
  expect(user.seen.at(-1)?.headers).toMatchObject({ authorization: "Bearer sk-1", "x-api-key": "app-1" });
});

test.each([
  ["s=1; Domain=cloche.localhost; Path=/", "s=1; Path=/"],
  ["s=1;domain=.cloche.localhost", "s=1"],
  ["s=1; DOMAIN = cloche.localhost ; Secure", "s=1; Secure"],
  ["s=1; Path=/; Domain; Domain=cloche.localhost", "s=1; Path=/"],
  ["s=domain=x; Path=/domain=y", "s=domain=x; Path=/domain=y"],
])("no cookie of a port is for the sandboxes of others: %s", async (sent, got) => {
  await using rig = await Rig.start();
  using user = await userServer({ "set-cookie": sent });
  const authorization = `Bearer ${await rig.gateway.token(sandboxA)}`;
  const answer = await rig.ask({ label: `${user.port}-${sandboxA}`, headers: { authorization } });
  expect(answer.headers["set-cookie"]).toEqual([got]);
});
