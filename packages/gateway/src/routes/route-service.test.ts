import { createClient, createRouterTransport } from "@connectrpc/connect";
import { Code } from "@connectrpc/connect";
import { type RouteEvent, RouteEvent_Kind, RouteService } from "@cloche/protocol/edge";
import { MachinePhase } from "@cloche/protocol/host";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { quiet } from "../testing/fake-clock.ts";
import {
  type GatewayFixture,
  newSigningKey,
  openFixture,
  testSigningKey,
} from "../testing/gateway-fixture.ts";

let f: GatewayFixture;
const stop: AbortController[] = [];
beforeEach(async () => {
  f = await openFixture();
});
afterEach(async () => {
  for (const one of stop.splice(0)) one.abort();
  await f.close();
});

const client = () =>
  createClient(
    RouteService,
    createRouterTransport((router) => {
      router.service(RouteService, f.gateway.routeService);
    }),
  );

/** An edge that applies all events. */
function watch() {
  const aborter = new AbortController();
  stop.push(aborter);
  const seen: RouteEvent[] = [];
  const routes = new Map<string, RouteEvent["route"]>();
  const done = (async () => {
    for await (const event of client().watchRoutes({}, { signal: aborter.signal })) {
      seen.push(event);
      if (event.kind === RouteEvent_Kind.SET) routes.set(event.route?.sandboxId ?? "", event.route);
      if (event.kind === RouteEvent_Kind.REMOVE) routes.delete(event.route?.sandboxId ?? "");
    }
  })().catch(() => undefined);
  const kinds = () => seen.map((one) => RouteEvent_Kind[one.kind]);
  return { seen, routes, kinds, done };
}
const create = async (body: object = {}): Promise<string> =>
  (await f.call("CreateSandbox", body)).body.sandbox.id;
const stateOf = async (id: string) => (await f.call("GetSandbox", { id })).body.sandbox?.state ?? "gone";

describe("WatchRoutes", () => {
  it("tells keys, every route, SYNCED, then each change", async () => {
    const id = await create({ auto_resume: true, public_ports: [80] });
    const edge = watch();
    await quiet();
    expect(edge.kinds()).toEqual(["KEYS", "SET", "SYNCED"]);
    expect(edge.seen[0]?.keys).toMatchObject({ issuer: "cloche-test", keys: [{ kid: "test-key" }] });
    expect(edge.routes.get(id)).toMatchObject({
      state: "SANDBOX_STATE_RUNNING",
      hostId: "local",
      agentHost: "127.0.0.1",
      agentPort: 4070,
      autoResume: true,
      publicPorts: [80],
      busy: false,
    });
    await f.call("UpdateSandbox", { id, public_ports: { ports: ["*"] } });
    await expect.poll(() => edge.routes.get(id)).toMatchObject({ publicPorts: [], allPortsPublic: true });
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => edge.routes.get(id)?.state).toBe("SANDBOX_STATE_SUSPENDED");
    await f.call("DeleteSandbox", { id });
    await expect.poll(() => edge.routes.size).toBe(0);
  });

  it("knows a route before its create answers, and before that where its machine runs", async () => {
    const edge = watch();
    await quiet();
    const id = await create();
    expect(edge.routes.get(id)).toMatchObject({
      state: "SANDBOX_STATE_RUNNING",
      busy: false,
      isAhead: false,
    });
    const ahead = { state: "SANDBOX_STATE_CREATING", agentHost: "127.0.0.1", agentPort: 4070, isAhead: true };
    expect(edge.seen).toContainEqual(expect.objectContaining({ route: expect.objectContaining(ahead) }));
  });

  it("passes on addresses, epochs and restores of machines", async () => {
    const id = await create();
    const edge = watch();
    await quiet();
    const before = edge.routes.get(id)?.epoch ?? 0n;
    f.host.set(id, MachinePhase.RUNNING, { busy: true, agentHost: "10.0.0.9" });
    await expect.poll(() => edge.routes.get(id)).toMatchObject({ busy: true, agentHost: "10.0.0.9" });
    expect(edge.routes.get(id)?.epoch).toBeGreaterThan(before);
    f.host.set(id, MachinePhase.RUNNING, { busy: false });
    await expect.poll(() => edge.routes.get(id)?.busy).toBe(false);
  });

  it("ends when the gateway closes", async () => {
    const edge = watch();
    await quiet();
    await f.gateway.close();
    await edge.done;
  });

  it("a reader that stands still is told the newest state, not each on the way", async () => {
    const iterator = client().watchRoutes({})[Symbol.asyncIterator]();
    await iterator.next();
    const creating = create();
    await expect.poll(() => f.host.machines.size).toBe(1);
    await quiet();
    // The create waits for a limited time for this edge, which does not read.
    await f.clock.advance(250);
    const id = await creating;
    for (let i = 0; i < 20; i += 1) f.host.set(id, MachinePhase.RUNNING, { agentPort: 5_000 + i });
    await quiet();
    const ports: number[] = [];
    for (let event = await iterator.next(); !event.done; event = await iterator.next()) {
      if (event.value.route !== undefined) ports.push(event.value.route.agentPort);
      if (ports.at(-1) === 5_019) break;
    }
    expect(ports.length).toBeLessThan(20);
    await iterator.return?.();
  });
});

describe("WakeSandbox", () => {
  it("answers the route of one that runs, and wakes one that is suspended or about to be", async () => {
    const id = await create({ auto_resume: true });
    expect(await client().wakeSandbox({ sandboxId: id })).toMatchObject({ state: "SANDBOX_STATE_RUNNING" });
    await f.call("SuspendSandbox", { id });
    const woken = await Promise.all([
      client().wakeSandbox({ sandboxId: id }),
      client().wakeSandbox({ sandboxId: id }),
    ]);
    expect(woken.map((one) => [one.state, one.busy])).toEqual(
      [1, 2].map(() => ["SANDBOX_STATE_RUNNING", false]),
    );
    expect(f.host.calls.filter((one) => one.startsWith("resumeMachine"))).toHaveLength(1);
    const audit = await f.database.audit.list({ teamId: f.teamId, subject: id, limit: 20 });
    expect(audit.find((one) => one.action === "sandbox.resume")?.actor).toBe("system:wake");
  });

  it("waits for a resume that is under way, whoever asked for it", async () => {
    const id = await create();
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    await f.call("ResumeSandbox", { id });
    expect(await client().wakeSandbox({ sandboxId: id })).toMatchObject({ state: "SANDBOX_STATE_RUNNING" });
  });

  it("refuses without auto_resume, in ERROR, and what is unknown", async () => {
    const id = await create();
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    await expect(client().wakeSandbox({ sandboxId: id })).rejects.toMatchObject({
      code: Code.Unavailable,
      rawMessage: `sandbox "${id}" is in SANDBOX_STATE_SUSPENDED; resume it: ResumeSandbox, or cloche resume ${id}`,
    });
    const failed = await create({ auto_resume: true });
    f.host.crash(failed, "broke");
    await expect.poll(() => stateOf(failed)).toBe("SANDBOX_STATE_ERROR");
    await expect(client().wakeSandbox({ sandboxId: failed })).rejects.toThrow(
      /is in SANDBOX_STATE_ERROR: broke; .*cloche rm sbx-/,
    );
    // The edge tells the sandbox's own callers.
    const { routes } = watch();
    await expect.poll(() => routes.get(failed)?.why).toBe("broke");
    await expect(client().wakeSandbox({ sandboxId: "sbx-x" })).rejects.toMatchObject({ code: Code.NotFound });
  });

  it("tells why a resume failed, once", async () => {
    const id = await create({ auto_resume: true });
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    f.host.fault("resumeMachine", "before", Code.ResourceExhausted, 1, "no memory left");
    await expect(client().wakeSandbox({ sandboxId: id })).rejects.toThrow(/no memory left/);
    expect(await client().wakeSandbox({ sandboxId: id })).toMatchObject({ state: "SANDBOX_STATE_RUNNING" });
  });

  it("gives up when the sandbox does not run in time", async () => {
    const id = await create({ auto_resume: true });
    await f.call("SuspendSandbox", { id });
    await expect.poll(() => stateOf(id)).toBe("SANDBOX_STATE_SUSPENDED");
    f.host.fault("resumeMachine", "hang");
    const woken = client().wakeSandbox({ sandboxId: id });
    const refused = expect(woken).rejects.toThrow(/is in SANDBOX_STATE_RESUMING/);
    await f.clock.advance(120_000);
    await refused;
  });
});

describe("UseFileLink", () => {
  it("notes the use of links that edges make, once, and of no others", async () => {
    const sandboxId = await create();
    const inMs = (ms: number) => BigInt(f.clock.nowMs() + ms);
    const use = (linkId: string, expiresAtUnixMs: bigint) =>
      client().useFileLink({ sandboxId, linkId, expiresAtUnixMs });
    await use("a".repeat(22), inMs(604_800_000));
    await expect(use("a".repeat(22), inMs(604_800_000))).rejects.toMatchObject({ code: Code.AlreadyExists });
    for (const [id, expiry] of [
      ["l".repeat(1_000_000), inMs(1_000)],
      ["b", 2n ** 64n - 1n],
      ["", inMs(1_000)],
    ] as const)
      await expect(use(id, expiry)).rejects.toMatchObject({ code: Code.InvalidArgument });
  });
});

describe("key rotation", () => {
  it("tells everyone the new key before it signs, and drops old ones left out", async () => {
    const edge = watch();
    const id = await create();
    const next = newSigningKey("next-key");
    const kidOf = async () => {
      const { jwt } = (await f.call("IssueDataPlaneToken", { sandbox_id: id })).body;
      return JSON.parse(Buffer.from(jwt.split(".")[0], "base64url").toString()).kid;
    };
    await f.gateway.rotateKeys([next, testSigningKey()]);
    expect(await kidOf()).toBe("next-key");
    expect(f.host.keys.kids).toEqual(["next-key", "test-key"]);
    await f.gateway.rotateKeys([next]);
    await quiet();
    expect(f.host.keys.kids).toEqual(["next-key"]);
    const told = edge.seen.flatMap((one) => (one.keys ? [one.keys.keys.map(({ kid }) => kid)] : []));
    expect([told[0], told.at(-1)]).toEqual([["test-key"], ["next-key"]]);
    expect(told).toContainEqual(["next-key", "test-key"]);
  });
});
