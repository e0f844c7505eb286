import { silentLog } from "@cloche/base";
import { SandboxService } from "@cloche/protocol/public";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { afterEach, describe, expect, it } from "vitest";
import { type GatewayFixture, openFixture } from "../testing/gateway-fixture.ts";
import { openSqlite } from "../database/database.ts";
import { FakeClock } from "../testing/fake-clock.ts";
import { CallLimits } from "./call-limits.ts";
import { GatewayCount } from "./gateway-count.ts";

const caller = (actor: string, teamId = "team-a") => ({ actor, teamId, requestId: "" });
const refused = (message: RegExp) =>
  expect.objectContaining({ code: "resource_exhausted", message: expect.stringMatching(message) });

describe("CallLimits", () => {
  it("let each key make five seconds' worth of calls at once, then its rate", async () => {
    const clock = new FakeClock();
    const calls = new CallLimits({ callsPerSecond: 2, concurrentCalls: 0 }, clock);
    for (let made = 0; made < 10; made += 1) calls.enter(caller("key-a"))();
    const tooFast = refused(/^API key key-a calls too fast; at most 2 calls a second$/);
    expect(() => calls.enter(caller("key-a"))).toThrow(tooFast);
    calls.enter(caller("key-b"))();
    await clock.advance(500);
    calls.enter(caller("key-a"))();
    expect(() => calls.enter(caller("key-a"))).toThrow(expect.objectContaining({ retryAfterSeconds: 1 }));
  });

  it("let each team have so many calls under way", () => {
    const calls = new CallLimits({ callsPerSecond: 0, concurrentCalls: 2 }, new FakeClock());
    const leave = calls.enter(caller("key-a"));
    calls.enter(caller("key-b"));
    expect(() => calls.enter(caller("key-c"))).toThrow(refused(/^the team has 2 calls under way; at most 2/));
    calls.enter(caller("key-c", "team-b"));
    leave();
    calls.enter(caller("key-c"));
  });
});

describe("over three gateways", () => {
  it("each allows its part", async () => {
    const clock = new FakeClock();
    let gateways = 3;
    const calls = new CallLimits({ callsPerSecond: 3, concurrentCalls: 7 }, clock, () => gateways);
    for (let made = 0; made < 5; made += 1) calls.enter(caller("key-a"))();
    expect(() => calls.enter(caller("key-a"))).toThrow(refused(/at most 3 calls a second$/));
    await clock.advance(1_000);
    calls.enter(caller("key-a"));
    calls.enter(caller("key-b"));
    expect(() => calls.enter(caller("key-c"))).toThrow(
      refused(/2 calls under way at this gateway; at most 2/),
    );
    gateways = 1;
    calls.enter(caller("key-c"));
  });

  it("a limit below their number still lets one through at each", () => {
    const calls = new CallLimits({ callsPerSecond: 1, concurrentCalls: 1 }, new FakeClock(), () => 20);
    calls.enter(caller("key-a"))();
    expect(() => calls.enter(caller("key-a"))).toThrow(refused(/calls too fast/));
  });
});

describe("GatewayCount", () => {
  it("counts those that say that they live, and keeps its count while the database is away", async () => {
    const clock = new FakeClock();
    const db = await openSqlite(":memory:", clock);
    const counts = ["a", "b", "c"].map((owner) => new GatewayCount(db.gateways, owner, clock, silentLog));
    for (const one of counts) await one.start();
    expect(counts.map(({ count }) => count)).toEqual([1, 2, 3]);
    await clock.advance(5_000);
    expect(counts.map(({ count }) => count)).toEqual([3, 3, 3]);
    await counts[2]?.close();
    const renew = db.gateways.renew.bind(db.gateways);
    db.gateways.renew = () => Promise.reject(new Error("the database is away"));
    await clock.advance(5_000);
    expect(counts[0]?.count).toBe(3);
    db.gateways.renew = renew;
    await clock.advance(5_000);
    expect(counts[0]?.count).toBe(2);
    // A killed gateway does not renew its lease.
    await db.gateways.renew("killed", 15_000);
    await clock.advance(5_000);
    expect(counts[0]?.count).toBe(3);
    await clock.advance(15_000);
    expect(counts[0]?.count).toBe(2);
    await Promise.all(counts.slice(0, 2).map((one) => one.close()));
    await db.close();
  });
});

describe("the gateway under limits", () => {
  let f: GatewayFixture;
  afterEach(() => f.close());

  it("answers 429 with Retry-After to a key that calls too fast, and serves it again when time has passed", async () => {
    f = await openFixture({ config: { limits: { callsPerSecond: 1 } } });
    for (let made = 0; made < 5; made += 1)
      expect(await f.call("ListSandboxes")).toMatchObject({ status: 200 });
    const answer = await f.call("ListSandboxes");
    expect(answer).toMatchObject({ status: 429, body: { code: "resource_exhausted" } });
    expect(answer.headers.get("retry-after")).toBe("1");
    await f.clock.advance(1_000);
    expect(await f.call("ListSandboxes")).toMatchObject({ status: 200 });
  });

  it("counts a call until it is answered, refused ones too", async () => {
    f = await openFixture({ config: { limits: { concurrentCalls: 1 } } });
    for (let made = 0; made < 3; made += 1) {
      expect(await f.call("GetSandbox", { id: "nothing" })).toMatchObject({ status: 404 });
      expect(await f.call("GetSandbox", "no json")).toMatchObject({ status: 400 });
      expect(await f.call("ListSandboxes")).toMatchObject({ status: 200 });
    }
  });

  it("counts a call by gRPC until it is answered", async () => {
    f = await openFixture({ config: { limits: { concurrentCalls: 2 } } });
    const transport = createGrpcTransport({ baseUrl: `http://127.0.0.1:${f.listener.port}` });
    const client = createClient(SandboxService, transport);
    const headers = { authorization: `Bearer ${f.secret}` };
    for (let made = 0; made < 5; made += 1)
      expect((await client.listSandboxes({}, { headers })).sandboxes).toEqual([]);
  });

  it("makes as many sandboxes as a team may have and not one more, until one is deleted", async () => {
    f = await openFixture({ config: { limits: { sandboxes: 2 } } });
    const first = await f.call("CreateSandbox");
    const second = await f.call("ForkSandbox", { source_sandbox_id: first.body.sandbox.id });
    expect([first.status, second.status]).toEqual([200, 200]);
    const refusals = [
      await f.call("CreateSandbox"),
      await f.call("ForkSandbox", { source_sandbox_id: first.body.sandbox.id }),
    ];
    for (const { status, body } of refusals)
      expect({ status, body }).toEqual({
        status: 429,
        body: {
          code: "resource_exhausted",
          message: "the team has 2 sandboxes; at most 2 are allowed: delete some first",
        },
      });
    expect(f.host.machines.size).toBe(2);
    const others = await f.gateway.addTeam("others");
    const { secret } = await f.gateway.createApiKey(others.id, "other");
    expect(await f.call("CreateSandbox", {}, { secret })).toMatchObject({ status: 200 });
    expect(await f.call("DeleteSandbox", { id: first.body.sandbox.id })).toMatchObject({ status: 200 });
    expect(await f.call("CreateSandbox")).toMatchObject({ status: 200 });
  });

  it("holds a team to its sandboxes when many are asked for at once", async () => {
    f = await openFixture({ config: { limits: { sandboxes: 3 } } });
    const answers = await Promise.all(Array.from({ length: 12 }, () => f.call("CreateSandbox")));
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(3);
    expect(answers.filter(({ status }) => status === 429)).toHaveLength(9);
  });
});
