import { once } from "node:events";
import https from "node:https";
import { systemClock } from "@cloche/base";
import { expect, test } from "vitest";
import { sandboxA, sandboxB } from "./testing/fake-gateway.ts";
import { Rig, baseDomain, readAll, until } from "./testing/rig.ts";

const code = (body: string): string => (JSON.parse(body) as { code: string }).code;

test("a request reaches the agent as it was sent and its answer comes back", async () => {
  await using rig = await Rig.start();
  const answer = await rig.ask({
    method: "POST",
    path: "/v1/files?path=/a/../b//c%2Fd",
    headers: { authorization: "Bearer t", "x-file-mode": "0600", "content-type": "text/plain" },
    body: "hello",
  });
  expect(answer.status).toBe(200);
  expect(rig.seen).toHaveLength(1);
  expect(rig.seen[0]).toMatchObject({ method: "POST", url: "/v1/files?path=/a/../b//c%2Fd", body: "hello" });
  expect(rig.seen[0]?.headers).toMatchObject({ authorization: "Bearer t", "x-file-mode": "0600" });
  expect(answer.headers["x-request-id"]).toMatch(/^req-[a-z0-9]{20}$/);
  expect(rig.seen[0]?.headers["x-request-id"]).toBe(answer.headers["x-request-id"]);
});

test("paths are never normalised", async () => {
  await using rig = await Rig.start();
  for (const path of [
    "/v1/store/a//b",
    "/v1/store/..",
    "/v1/store/%2e%2E/x",
    "/v1/store/a%00b",
    "/v1/x?y#z",
  ]) {
    await rig.raw(`GET ${path} HTTP/1.1\r\nHost: ${rig.host()}\r\nConnection: close\r\n\r\n`);
    expect(rig.seen.at(-1)?.url).toBe(path);
  }
});

test("hop-by-hop and internal headers stay behind, others keep case, order and repetition", async () => {
  await using rig = await Rig.start();
  await rig.raw(
    `GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nX-Dup: 1\r\nX-Dup: 2\r\nConnection: close, X-Secret, Authorization\r\nX-Secret: s\r\n` +
      "Authorization: Bearer t\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: p\r\nX-Cloche-Exec-Id: forged\r\nx-cloche-sandbox-id: forged\r\n\r\n",
  );
  const raw = rig.seen[0]?.rawHeaders ?? [];
  expect(raw.slice(0, 8)).toEqual([
    "Host",
    rig.host(),
    "X-Dup",
    "1",
    "X-Dup",
    "2",
    "Authorization",
    "Bearer t",
  ]);
  expect(raw.map((text) => text.toLowerCase())).not.toContain("x-secret");
  expect(raw.join(" ")).not.toMatch(/forged|keep-alive: 5|trailers|proxy-auth/i);
});

test("the caller's own request id is kept when it is sane", async () => {
  await using rig = await Rig.start();
  const own = await rig.ask({ path: "/v1/x", headers: { "x-request-id": "my-id.1" } });
  expect(own.headers["x-request-id"]).toBe("my-id.1");
  expect(own.rawHeaders.filter((name) => name.toLowerCase() === "x-request-id")).toHaveLength(1);
  const insane = await rig.ask({ path: "/v1/x", headers: { "x-request-id": "x".repeat(500) } });
  expect(insane.headers["x-request-id"]).toMatch(/^req-/);
});

test("an unknown domain is 404, whatever its form, before and after a sandbox lived there", async () => {
  await using rig = await Rig.start();
  for (const label of [sandboxB, "www", "sbx-short", `0-${sandboxA}`, `70000-${sandboxA}`, `x.${sandboxA}`]) {
    const answer = await rig
      .ask({ label, servername: `x.${baseDomain}`, rejectUnauthorized: false })
      .catch(() => undefined);
    expect([404, 421]).toContain(answer?.status);
  }
  const answer = await rig.ask({ label: sandboxB });
  expect(answer.status).toBe(404);
  expect(code(answer.body)).toBe("not_found");
  expect(answer.headers["content-type"]).toBe("application/json");
  rig.gateway.remove(sandboxA);
  await until(() => rig.gateway.woken.length === 0);
  expect((await rig.ask()).status).toBe(404);
});

test("the sandbox is found by Host in any case, with or without port and root dot", async () => {
  await using rig = await Rig.start();
  for (const host of [
    `${sandboxA.toUpperCase()}.${baseDomain}`,
    `${sandboxA}.${baseDomain}.:1`,
    rig.host(),
  ]) {
    const text = await rig.raw(`GET /v1/x HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`);
    expect(text).toMatch(/^HTTP\/1\.1 200 /);
  }
});

test("Host tricks: none, two, empty, another sandbox than SNI, an absolute URL", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({
    sandboxId: sandboxB,
    state: "SANDBOX_STATE_RUNNING",
    agentHost: "127.0.0.1",
    agentPort: rig.agentPort,
    epoch: 1n,
  });
  const ask = (head: string): Promise<string> => rig.raw(`${head}\r\n\r\n`);
  expect(await ask("GET /v1/x HTTP/1.1")).toMatch(/^HTTP\/1\.1 400 [\s\S]*Host header is missing/);
  expect(await ask(`GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nHost: ${rig.host(sandboxB)}`)).toMatch(
    /^HTTP\/1\.1 400 /,
  );
  expect(await ask("GET /v1/x HTTP/1.1\r\nHost:\r\nConnection: close")).toMatch(/^HTTP\/1\.1 404 /);
  expect(await ask(`GET /v1/x HTTP/1.1\r\nHost: ${rig.host(sandboxB)}`)).toMatch(/^HTTP\/1\.1 421 /);
  expect(await ask(`GET https://${rig.host(sandboxB)}/v1/x HTTP/1.1\r\nHost: ${rig.host()}`)).toMatch(
    /^HTTP\/1\.1 400 /,
  );
  expect(await ask("CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: x")).toMatch(/^HTTP\/1\.1 400 /);
  expect(
    await ask(`GET /v1/x HTTP/1.1\r\nHost: ${sandboxA}.${baseDomain}@evil.example\r\nConnection: close`),
  ).toMatch(/^HTTP\/1\.1 404 /);
  expect(rig.seen).toHaveLength(0);
});

test("request smuggling: every ambiguous framing is 400 and the connection ends", async () => {
  await using rig = await Rig.start();
  const smuggled = "GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
  const attempts = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: xchunked\r\n\r\n",
    "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "Content-Length: +5\r\n\r\nhello",
    "Content-Length : 5\r\n\r\nhello",
    "Content-Length: 5, 5\r\n\r\nhello",
    "X: a\r\n folded: yes\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n5;\nx\r\nhello\r\n0\r\n\r\n",
  ];
  for (const attempt of attempts) {
    const text = await rig.raw(`POST /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\n${attempt}${smuggled}`);
    expect(text, attempt).toMatch(/^HTTP\/1\.1 400 [\s\S]*"code":"invalid_argument"/);
    expect(text.match(/HTTP\/1\.1 \d/g), attempt).toHaveLength(1);
  }
  expect(rig.seen.filter(({ url }) => url.includes("smuggled"))).toEqual([]);
});

test("malformed HTTP is 400 with our error shape", async () => {
  await using rig = await Rig.start();
  for (const text of [
    "rubbish\r\n\r\n",
    "GET /v1/x HTTP/9.9\r\n\r\n",
    `GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nA\0b: c\r\n\r\n`,
  ]) {
    expect(await rig.raw(text)).toMatch(
      /^HTTP\/1\.1 400 Bad Request[\s\S]*connection: close[\s\S]*"invalid_argument"/,
    );
  }
});

test("10,000 headers are 431, small ones and large ones", async () => {
  await using rig = await Rig.start();
  const head = (count: number, line: string): string =>
    `GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\n${line.repeat(count)}\r\n`;
  for (const text of [
    head(10_000, "a:\r\n"),
    head(10_000, "abcdefgh: 12345678\r\n"),
    head(300, "a: b\r\n"),
  ]) {
    expect(await rig.raw(text)).toMatch(/^HTTP\/1\.1 431 [\s\S]*"resource_exhausted"/);
  }
  expect(await rig.raw(`GET /${"x".repeat(40_000)} HTTP/1.1\r\nHost: ${rig.host()}\r\n\r\n`)).toMatch(
    /^HTTP\/1\.1 414 /,
  );
  expect(rig.seen).toHaveLength(0);
});

test("a head that trickles in is given up with 408", async () => {
  await using rig = await Rig.start({ limits: { headersTimeoutMs: 100 } });
  expect(await rig.raw("GET /v1/x HTTP/1.1\r\nHost: ")).toMatch(/^HTTP\/1\.1 408 [\s\S]*"deadline_exceeded"/);
});

test("a body that stops coming is given up with 408, buffered or streaming", async () => {
  await using rig = await Rig.start({ limits: { bodyStallMs: 60 } });
  for (const framing of [
    "Content-Length: 10\r\n\r\nhal",
    "Content-Length: 1000000\r\n\r\nhal",
    "Transfer-Encoding: chunked\r\n\r\n3\r\nhal\r\n",
  ]) {
    expect(await rig.raw(`POST /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\n${framing}`)).toMatch(
      /^HTTP\/1\.1 408 /,
    );
  }
  expect(rig.seen).toHaveLength(0);
});

test("a client that shuts its sending side still gets its answer; half a request gets 400", async () => {
  await using rig = await Rig.start();
  const whole = await rig.connect();
  whole.end(`GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\n\r\n`);
  expect(await readAll(whole)).toMatch(/^HTTP\/1\.1 200 [\s\S]*"url":"\/v1\/x"/);
  for (const part of [
    "GET /v1/x HT",
    `POST /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nContent-Length: 9\r\n\r\nhal`,
    `POST /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\nContent-Length: 999999\r\n\r\nhal`,
  ]) {
    const half = await rig.connect();
    half.end(part);
    expect(await readAll(half)).toMatch(/^HTTP\/1\.1 400 [\s\S]*before it was whole/);
  }
  expect(rig.seen).toHaveLength(1);
});

test("pipelined requests are answered one after the other, in order", async () => {
  await using rig = await Rig.start();
  let open = 0;
  rig.onAgent = (request, response) => {
    open += 1;
    expect(open).toBe(1);
    setTimeout(
      () => {
        open -= 1;
        response.end(request.url);
      },
      request.url === "/v1/1" ? 30 : 0,
    );
  };
  const get = (path: string, more = ""): string =>
    `GET ${path} HTTP/1.1\r\nHost: ${rig.host()}\r\n${more}\r\n`;
  const text = await rig.raw(get("/v1/1") + get("/v1/2") + get("/v1/3", "Connection: close\r\n"));
  expect(text.match(/\/v1\/\d/g)).toEqual(["/v1/1", "/v1/2", "/v1/3"]);
});

test("one connection cannot pile up requests without end", async () => {
  await using rig = await Rig.start({ limits: { pipelinedRequests: 4 } });
  rig.onAgent = () => undefined;
  const text = await rig.raw(`GET /v1/x HTTP/1.1\r\nHost: ${rig.host()}\r\n\r\n`.repeat(20));
  expect(text).toBe("");
});

test("a kept connection serves many requests over few agent connections", async () => {
  await using rig = await Rig.start();
  let connections = 0;
  rig.agent.on("connection", () => (connections += 1));
  const agent = new https.Agent({ keepAlive: true, maxSockets: 1 });
  for (let index = 0; index < 20; index += 1)
    expect((await rig.ask({ agent, path: `/v1/${index}` })).status).toBe(200);
  expect(connections).toBe(1);
  agent.destroy();
});

test("checkpoint and restore go to the host with request id and CORS headers, the rest to the agent", async () => {
  await using rig = await Rig.start();
  for (const path of ["/v1/checkpoint", "/v1/checkpoint/list", "/v1/restore?x"]) {
    const answer = await rig.ask({
      method: "POST",
      path,
      headers: { origin: "https://app.example", "x-request-id": "mine" },
    });
    expect(JSON.parse(answer.body)).toEqual({ answeredBy: "host", requestId: "mine" });
    expect(answer.headers).toMatchObject({ "x-request-id": "mine", "access-control-allow-origin": "*" });
  }
  await rig.ask({ path: "/v1/checkpoints" });
  expect(rig.hostSeen).toHaveLength(3);
  expect(rig.seen).toHaveLength(1);
});

test("a body that goes on after the answer is cut off in time, also at the host's routes", async () => {
  for (const limits of [{ lingerWholeMs: 50 }, { lingerBytes: 100 }, { lingerMs: 50 }]) {
    await using rig = await Rig.start({ limits });
    rig.onAgent = (_request, response) => response.end("early");
    const isStill = limits.lingerMs !== undefined;
    for (const path of ["/v1/checkpoint", "/v1/files/archive?path=/x"]) {
      const socket = await rig.connect();
      socket.write(`POST ${path} HTTP/1.1\r\nHost: ${rig.host()}\r\nTransfer-Encoding: chunked\r\n\r\n`);
      const pour = setInterval(() => isStill || socket.write("5\r\nhello\r\n"), 5);
      expect(await readAll(socket)).toMatch(/^HTTP\/1\.1 200 /);
      clearInterval(pour);
    }
  }
});

test("paths between edge and agent are closed to clients", async () => {
  await using rig = await Rig.start();
  for (const path of [
    "/cloche/exec-abort",
    "/cloche/port/22",
    "/Cloche/port/22",
    "//cloche/port/22",
    "/cloche.guest.v1.GuestService/Assign",
  ]) {
    expect((await rig.ask({ method: "POST", path })).status).toBe(404);
  }
  const text = await rig.raw(
    `GET /v1/../cloche/port/22 HTTP/1.1\r\nHost: ${rig.host()}\r\nConnection: Upgrade, close\r\nUpgrade: cloche-port\r\n\r\n`,
  );
  expect(text).toMatch(/^HTTP\/1\.1 200 /);
  expect(rig.seen[0]?.headers.upgrade).toBeUndefined();
  expect(rig.aborted).toHaveLength(0);
});

test("preflights are answered for any origin without a token, and errors can be read by browsers", async () => {
  await using rig = await Rig.start();
  const headers = {
    origin: "https://app.example",
    "access-control-request-method": "PUT",
    "access-control-request-headers": "authorization,x-file-mode",
  };
  const answer = await rig.ask({ method: "OPTIONS", path: "/v1/store/k", headers });
  expect(answer.status).toBe(204);
  expect(answer.headers).toMatchObject({
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
    "access-control-allow-headers": "authorization,x-file-mode",
  });
  expect(answer.headers["access-control-allow-credentials"]).toBeUndefined();
  const missing = await rig.ask({ label: sandboxB, headers: { origin: "https://app.example" } });
  expect(missing.headers["access-control-allow-origin"]).toBe("*");
});

test("with origins configured only those are allowed", async () => {
  await using rig = await Rig.start({ corsOrigins: ["https://app.example"] });
  const ask = (origin: string) =>
    rig.ask({
      method: "OPTIONS",
      path: "/v1/exec",
      headers: { origin, "access-control-request-method": "POST" },
    });
  expect((await ask("https://app.example")).headers).toMatchObject({
    "access-control-allow-origin": "https://app.example",
    vary: "origin",
  });
  expect((await ask("https://evil.example")).headers["access-control-allow-origin"]).toBeUndefined();
});

test("a new certificate is served after setTls", async () => {
  await using rig = await Rig.start();
  const { selfSigned } = await import("./testing/certificate.ts");
  const fresh = await selfSigned(baseDomain);
  rig.edge.setTls(fresh);
  expect((await rig.ask({ ca: fresh.cert })).status).toBe(200);
  await expect(rig.ask()).rejects.toThrow();
});

test("stop lets an open request end, then refuses new ones", async () => {
  await using rig = await Rig.start();
  rig.onAgent = (_request, response) => void setTimeout(() => response.end("late"), 50);
  const asked = rig.ask();
  await once(rig.agent, "request");
  await rig.edge.stop(5_000);
  expect((await asked).body).toBe("late");
  await expect(rig.ask()).rejects.toThrow();
});

test("a sandbox that is asked too fast answers 429 with Retry-After, others do not", async () => {
  let nowMs = 0;
  const clock = { ...systemClock, monotonicMs: () => nowMs };
  await using rig = await Rig.start({ clock, limits: { requestsPerSecond: 1 } });
  for (let asked = 0; asked < 5; asked += 1) expect((await rig.ask({ path: "/v1/x" })).status).toBe(200);
  const answer = await rig.ask({ path: "/v1/x" });
  expect(answer.status).toBe(429);
  expect(code(answer.body)).toBe("resource_exhausted");
  expect(answer.headers["retry-after"]).toBe("1");
  expect((await rig.ask({ label: sandboxB })).status).toBe(404);
  nowMs = 1_000;
  expect((await rig.ask({ path: "/v1/x" })).status).toBe(200);
});
