import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Code, ConnectError } from "@connectrpc/connect";
import { create } from "@bufbuild/protobuf";
import { RouteSchema } from "@cloche/protocol/edge";
import { sandboxStates } from "@cloche/protocol";
import { expect, test } from "vitest";
import { edgeLimits } from "../edge-limits.ts";
import { Gate } from "./gate.ts";
import { RouteTable } from "../route-table.ts";
import { FakeGateway, sandboxA, sandboxB } from "../testing/fake-gateway.ts";
import { Rig, until } from "../testing/rig.ts";

test("a sandbox that is not RUNNING is 503 naming its state", async () => {
  await using rig = await Rig.start();
  for (const state of sandboxStates.filter((name) => name !== "SANDBOX_STATE_RUNNING")) {
    rig.gateway.set({ sandboxId: sandboxA, state });
    for (const path of ["/v1/exec", "/v1/checkpoint/list"]) {
      const answer = await rig.ask({ path });
      expect(answer.status).toBe(503);
      expect(JSON.parse(answer.body)).toMatchObject({ code: "unavailable" });
      expect(answer.body).toContain(state);
    }
  }
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_RESUMING" });
  expect((await rig.ask()).headers["retry-after"]).toBe("1");
  expect(rig.gateway.woken).toEqual([]);
});

test("why a sandbox does not run, and what to do, is told to its own callers; why, to nobody else", async () => {
  await using rig = await Rig.start();
  const authorization = `Bearer ${await rig.gateway.token(sandboxA)}`;
  const other = `Bearer ${await rig.gateway.token(sandboxB)}`;
  const why = "its host was lost while it ran";
  for (const [state, remedy] of [
    ["SANDBOX_STATE_SUSPENDED", `cloche resume ${sandboxA}`],
    ["SANDBOX_STATE_ERROR", `cloche rm ${sandboxA}`],
  ] as const) {
    rig.gateway.set({ sandboxId: sandboxA, state, why });
    await until(async () => (await rig.ask()).body.includes(state));
    const own = await rig.ask({ headers: { authorization } });
    expect(own.body).toContain(`is ${state}: ${why}; `);
    expect(own.body).toContain(remedy);
    for (const headers of [{}, { authorization: other }])
      expect((await rig.ask({ headers })).body).not.toContain(why);
    rig.gateway.set({ sandboxId: sandboxA, state, why, publicPorts: [8080] });
    await until(async () => (await rig.ask({ label: `8080-${sandboxA}` })).status === 503);
    expect((await rig.ask({ label: `8080-${sandboxA}` })).body).not.toContain(why);
  }
});

test("a valid token waits a moment for a sandbox that is about to run: another gateway may have told so", async () => {
  await using rig = await Rig.start({ limits: { comingMs: 600 } });
  const authorization = `Bearer ${await rig.gateway.token(sandboxA)}`;
  for (const state of ["SANDBOX_STATE_CREATING", "SANDBOX_STATE_RESUMING"] as const) {
    rig.gateway.set({ sandboxId: sandboxA, state });
    await until(async () => (await rig.ask()).status === 503);
    const early = rig.ask({ headers: { authorization } });
    setTimeout(() => rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_RUNNING" }), 100);
    expect((await early).status).toBe(200);
  }
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_CREATING" });
  await until(async () => (await rig.ask()).status === 503);
  const late = await rig.ask({ headers: { authorization } });
  expect([late.status, late.headers["retry-after"]]).toEqual([503, "1"]);
});

test("a valid token wakes a sandbox with auto_resume, once for many requests", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true });
  // Wait until the edge has the route: before that, requests would go to the agent.
  await until(async () => (await rig.ask()).status === 401);
  const authorization = `Bearer ${await rig.gateway.token(sandboxA)}`;
  const asked = [1, 2, 3].map((index) => rig.ask({ path: `/v1/${index}`, headers: { authorization } }));
  for (const answer of await Promise.all(asked)) expect(answer.status).toBe(200);
  expect(rig.gateway.woken).toEqual([sandboxA]);
});

test("a request whose token is looked at for longer than another's wake-up takes does not wake again", async () => {
  const gateway = await FakeGateway.start();
  gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true });
  const table = new RouteTable(() => undefined);
  table.setIfNewer(gateway.routeOf(sandboxA));
  const gate = new Gate(table, gateway.client, edgeLimits);
  const looked = Promise.withResolvers<void>();
  const slow = gate.admit(sandboxA, false, { kind: "bearer", authorise: () => looked.promise });
  const quick = await gate.admit(sandboxA, false, { kind: "bearer", authorise: async () => undefined });
  looked.resolve();
  expect((await slow).epoch).toBe(quick.epoch);
  expect(gateway.woken).toEqual([sandboxA]);
});

test("what the stream says late of the time before a wake-up does not cut off who was let in by it", async () => {
  await using rig = await Rig.start();
  const suspended = { sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true, epoch: 3n };
  rig.gateway.set(suspended);
  await until(async () => (await rig.ask()).status === 401);
  // WakeSandbox's answer is ahead of the stream, which reports an earlier step while the agent serves the request.
  rig.gateway.onWake = async () =>
    Object.assign(rig.gateway.routeOf(sandboxA), { state: "SANDBOX_STATE_RUNNING", epoch: 5n });
  rig.onAgent = (_request, response) => {
    rig.gateway.set({ ...suspended, state: "SANDBOX_STATE_RESUMING", epoch: 4n });
    rig.gateway.set({ ...suspended, state: "SANDBOX_STATE_RUNNING", epoch: 5n });
    setTimeout(() => response.end("{}"), 50);
  };
  const authorization = `Bearer ${await rig.gateway.token(sandboxA)}`;
  const answer = await rig.ask({ path: "/v1/busy", headers: { authorization } });
  expect(answer.status).toBe(200);
});

test("nothing is woken without a valid token of that sandbox", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true });
  const past = Math.floor(Date.now() / 1000) - 10;
  const other = await (await import("../testing/fake-gateway.ts")).FakeGateway.start();
  const tokens: Array<[string | undefined, RegExp]> = [
    [undefined, /Authorization: Bearer/],
    ["rubbish", /malformed/],
    [await rig.gateway.token(sandboxB), /not of this sandbox/],
    [await rig.gateway.token(sandboxA, { exp: past }), /expired/],
    [await rig.gateway.token(sandboxA, { nbf: past + 3_600 }), /not valid yet/],
    [await rig.gateway.token(sandboxA, { iss: "another" }), /another service/],
    [await rig.gateway.token(sandboxA, {}, { kid: "key-2" }), /not signed by this service/],
    [await other.token(sandboxA), /not signed by this service/],
    [
      `${Buffer.from('{"alg":"none"}').toString("base64url")}.${Buffer.from(JSON.stringify({ aud: sandboxA })).toString("base64url")}.`,
      /malformed/,
    ],
  ];
  for (const [token, problem] of tokens) {
    const answer = await rig.ask({
      headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
    });
    expect(answer.status, String(problem)).toBe(401);
    expect(answer.headers["www-authenticate"]).toBe("Bearer");
    expect((JSON.parse(answer.body) as { message: string }).message).toMatch(problem);
  }
  expect(rig.gateway.woken).toEqual([]);
});

test("a wake that fails is 503 naming the state, and the next request tries again", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true });
  const wake = rig.gateway.onWake;
  rig.gateway.onWake = () => Promise.reject(new ConnectError("no room", Code.ResourceExhausted));
  const headers = { authorization: `Bearer ${await rig.gateway.token(sandboxA)}` };
  const failed = await rig.ask({ headers });
  expect(failed.status).toBe(503);
  expect(failed.body).toContain("SANDBOX_STATE_SUSPENDED");
  expect(failed.body).not.toContain("no room");
  rig.gateway.onWake = wake;
  expect((await rig.ask({ headers })).status).toBe(200);
});

test("a wake that answers before the stream does is believed", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", autoResume: true });
  rig.gateway.onWake = async (sandboxId) =>
    create(RouteSchema, {
      sandboxId,
      state: "SANDBOX_STATE_RUNNING",
      agentHost: "127.0.0.1",
      agentPort: rig.agentPort,
      epoch: 9n,
    });
  expect(
    (await rig.ask({ headers: { authorization: `Bearer ${await rig.gateway.token(sandboxA)}` } })).status,
  ).toBe(200);
});

test("a request waits for a restore to end, the host's routes do not", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ sandboxId: sandboxA, busy: true });
  expect((await rig.ask({ path: "/v1/checkpoint/list" })).status).toBe(200);
  const asked = rig.ask({ path: "/v1/x", headers: await rig.bearer() });
  const refused = await Promise.race([asked, rig.ask({ path: "/v1/checkpoint/list" })]);
  expect(refused.body).toContain("host");
  rig.gateway.set({ sandboxId: sandboxA, busy: false, epoch: 2n });
  expect((await asked).status).toBe(200);
});

test("the wait for a restore is bounded in time", async () => {
  await using rig = await Rig.start({ limits: { busyWaitMs: 40 } });
  rig.gateway.set({ sandboxId: sandboxA, busy: true });
  const answer = await rig.ask({ path: "/v1/x", headers: await rig.bearer() });
  expect(answer.status).toBe(503);
  expect(answer.headers["retry-after"]).toBe("1");
  expect(answer.body).toContain("is being restored");
});

test("the number of requests that wait is bounded, for each sandbox", async () => {
  await using rig = await Rig.start({ limits: { waitingOfSandbox: 2 } });
  rig.gateway.set({ sandboxId: sandboxA, busy: true });
  const headers = await rig.bearer();
  const asked = [1, 2, 3].map(() => rig.ask({ path: "/v1/x", headers }));
  const first = await Promise.race(asked);
  expect(first.status).toBe(503);
  expect(first.body).toContain(`too many requests wait for sandbox ${sandboxA}`);
  rig.gateway.set({ sandboxId: sandboxA, busy: false });
  const statuses = (await Promise.all(asked)).map(({ status }) => status);
  expect(statuses.sort()).toEqual([200, 200, 503]);
});

test("who has no good token never waits, takes nobody's place and reaches no agent", async () => {
  await using rig = await Rig.start({ limits: { waitingOfSandbox: 1, waitingOfTeam: 1 } });
  const strangers = [{}, { authorization: "Bearer rubbish" }, await rig.bearer(sandboxB)];
  rig.gateway.set({ sandboxId: sandboxA, busy: true });
  // Wait until the edge has the route: before that, the request reaches the agent.
  await until(async () => (await rig.ask({ path: "/v1/x" })).status === 401);
  rig.seen.length = 0;
  const answers = await Promise.all(
    strangers.flatMap((headers) => [1, 2, 3].map(() => rig.ask({ path: "/v1/x", headers }))),
  );
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([401]));
  expect(rig.seen).toEqual([]);
  const asked = rig.ask({ path: "/v1/x", headers: await rig.bearer() });
  rig.gateway.set({ sandboxId: sandboxA, busy: false });
  expect((await asked).status).toBe(200);
});

test("visitors of a public port wait apart from who has a token, and the port's owner keeps his place", async () => {
  const limits = { waitingOfSandbox: 1, visitorsOfSandbox: 2, agentAnswerMs: 2_000 };
  await using rig = await Rig.start({ limits });
  const user = createServer((_, response) => response.end())
    .listen(0, "127.0.0.1")
    .unref();
  await once(user, "listening");
  const { port } = user.address() as AddressInfo;
  rig.gateway.set({ sandboxId: sandboxA, publicPorts: [port], busy: true });
  const label = `${port}-${sandboxA}`;
  await until(async () => (await rig.ask({ path: "/v1/x" })).status === 401);
  const visits = [{}, { authorization: "Bearer rubbish" }, {}].map((headers) => rig.ask({ label, headers }));
  const full = await Promise.race(visits);
  expect([full.status, full.headers["retry-after"]]).toEqual([503, "1"]);
  const owner = rig.ask({ label, headers: await rig.bearer() });
  // When these later requests are answered, the owner's request waits or was refused.
  for (let i = 0; i < 2; i += 1) await rig.ask({ path: "/v1/checkpoint/list" });
  rig.gateway.set({ sandboxId: sandboxA, busy: false });
  expect((await owner).status).toBe(200);
  const statuses = (await Promise.all(visits)).map(({ status }) => status);
  expect(statuses.sort()).toEqual([200, 200, 503]);
});

test("visitors of a public port wake a sandbox of auto_resume, in their own places; a port that is not public wakes nothing", async () => {
  await using rig = await Rig.start({ limits: { waitingOfSandbox: 1, visitorsOfSandbox: 2 } });
  const user = createServer((_, response) => response.end())
    .listen(0, "127.0.0.1")
    .unref();
  await once(user, "listening");
  const { port } = user.address() as AddressInfo;
  const suspended = { sandboxId: sandboxA, state: "SANDBOX_STATE_SUSPENDED", publicPorts: [port] };
  rig.gateway.set({ ...suspended, autoResume: false });
  await until(async () => (await rig.ask({ label: `${port}-${sandboxA}` })).status === 503);
  rig.gateway.set({ ...suspended, autoResume: true });
  const preflight = { origin: "https://example.com", "access-control-request-method": "GET" };
  const closed = { label: `${port + 1}-${sandboxA}` };
  await until(async () => (await rig.ask(closed)).status === 401);
  expect((await rig.ask({ ...closed, method: "OPTIONS", headers: preflight })).status).toBe(204);
  expect((await rig.ask({ path: "/v1/x" })).status).toBe(401);
  expect(rig.gateway.woken).toEqual([]);

  const wake = rig.gateway.onWake;
  const { promise, resolve: go } = Promise.withResolvers<void>();
  rig.gateway.onWake = async (id) => promise.then(() => wake(id));
  const visits = [1, 2, 3].map(() => rig.ask({ label: `${port}-${sandboxA}` }));
  expect((await Promise.race(visits)).body).toContain("too many requests wait");
  go();
  const statuses = (await Promise.all(visits)).map(({ status }) => status);
  expect(statuses.sort()).toEqual([200, 200, 503]);
  expect(rig.gateway.woken).toEqual([sandboxA]);
});

test("a sandbox suspended or deleted during a restore is told as such", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({ sandboxId: sandboxA, busy: true });
  const asked = rig.ask({ path: "/v1/x", headers: await rig.bearer() });
  await rig.ask({ path: "/v1/checkpoint/list" });
  rig.gateway.set({ sandboxId: sandboxA, state: "SANDBOX_STATE_DELETING" });
  expect((await asked).body).toContain("SANDBOX_STATE_DELETING");
});

test("a request under way when the epoch changes is 503, and new ones use new connections", async () => {
  await using rig = await Rig.start();
  rig.onAgent = () => undefined;
  const asked = rig.ask({ path: "/v1/x" });
  await once(rig.agent, "request");
  rig.onAgent = undefined;
  rig.gateway.set({ sandboxId: sandboxA, epoch: 2n });
  const answer = await asked;
  expect(answer.status).toBe(503);
  expect(answer.body).toContain("may run on");
  expect((await rig.ask({ path: "/v1/y" })).status).toBe(200);
});

test("the table survives a broken stream, and forgets what went away meanwhile", async () => {
  await using rig = await Rig.start();
  rig.gateway.set({
    sandboxId: sandboxB,
    state: "SANDBOX_STATE_RUNNING",
    agentHost: "127.0.0.1",
    agentPort: rig.agentPort,
    epoch: 1n,
  });
  expect((await rig.ask({ label: sandboxB })).status).toBe(200);
  rig.gateway.forget(sandboxB);
  expect((await rig.ask({ label: sandboxB })).status).toBe(200);
  rig.gateway.breakStreams();
  let last = 200;
  await until(() => {
    rig.ask({ label: sandboxB }).then(
      ({ status }) => (last = status),
      () => undefined,
    );
    return last === 404;
  });
  expect((await rig.ask()).status).toBe(200);
});
