/** Draining hosts: their running sandboxes move, and nothing is lost. */
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { RouteService } from "@cloche/protocol/edge";
import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { gatewayLimits } from "../limits.ts";
import { quiet } from "../testing/fake-clock.ts";
import { hostIds, LossWorld } from "../testing/loss-world.ts";

const R = "SANDBOX_STATE_RUNNING";
const S = "SANDBOX_STATE_SUSPENDED";
/** These tests run many small worlds, which must not fail because the computer is busy. */
const patient = { timeout: 180_000 };

let world: LossWorld;
beforeEach(async () => {
  world = await LossWorld.open();
});
afterEach(() => world.close());

const setState = async (hostId: string, state: "open" | "cordoned" | "draining"): Promise<void> => {
  await world.fleet.database.hosts.setState(hostId, state);
  await world.fleet.clock.advance(2_000);
};
/** Creates sandboxes on one host. */
async function createOn(hostId: string, bodies: object[]): Promise<string[]> {
  for (const id of hostIds) if (id !== hostId) await setState(id, "cordoned");
  const ids: string[] = [];
  for (const body of bodies) ids.push(await world.create(body));
  for (const id of hostIds) await setState(id, "open");
  return ids;
}
const memories = (ids: string[]) => Promise.all(ids.map((id) => world.memory(id)));
const states = (ids: string[]) => Promise.all(ids.map(async (id) => (await world.record(id)).state));
const actions = async (id: string): Promise<string[]> => {
  const { entries } = (await world.gateway.call("ListAuditEntries", { subject: id })).body;
  return entries.map(({ action }: { action: string }) => action);
};
const wake = (sandboxId: string) =>
  createClient(
    RouteService,
    createRouterTransport(({ service }) => service(RouteService, world.gateway.gateway.routeService)),
  ).wakeSandbox({ sandboxId });

describe("a host that drains", patient, () => {
  it("moves what runs to others, a few at once, with its memory, and leaves what is suspended", async () => {
    const ids = await createOn(
      "h-1",
      Array.from({ length: 6 }, () => ({ memory_mb: 512 })),
    );
    const [still = "", ...running] = ids;
    await world.suspend(still);
    const before = await memories(running);
    const host = world.host("h-1");
    // What is suspended stays until it is in storage.
    host.stores = false;
    await setState("h-1", "draining");
    await world.settle(3);
    const leaving = running.filter((id) => !host.running().includes(id));
    expect(leaving.length).toBe(gatewayLimits.drainAtOnce);
    host.stores = true;
    for (const id of leaving) host.store(id);
    await world.settle();
    expect(await states(running)).toEqual(Array(5).fill(R));
    expect(await memories(running)).toEqual(before);
    for (const id of running)
      expect(await world.record(id)).toMatchObject({ isMoving: false, errorMessage: "" });
    expect(await world.record(still)).toMatchObject({ state: S, hostId: "h-1" });
    expect([...host.machines.keys()]).toEqual([still]);
    await world.checkTruth();
  });

  it("resumes elsewhere what is asked for there", async () => {
    const [id = ""] = await createOn("h-1", [{}]);
    await world.suspend(id);
    const memory = await world.memory(id);
    await setState("h-1", "draining");
    await world.gateway.call("ResumeSandbox", { id });
    await world.settle();
    expect((await world.record(id)).hostId).not.toBe("h-1");
    expect(await world.memory(id)).toBe(memory);
    await world.checkTruth();
  });

  it("has requests wait for what moves, whatever its auto_resume", async () => {
    const [id = ""] = await createOn("h-1", [{}]);
    world.host("h-1").stores = false;
    await setState("h-1", "draining");
    await world.settle(8);
    expect(await world.record(id)).toMatchObject({ state: S, isMoving: true, autoResume: false });
    const woken = wake(id);
    await world.settle(5);
    world.host("h-1").store(id);
    await world.settle();
    expect(await woken).toMatchObject({ state: R, autoResume: false });
    expect((await world.record(id)).hostId).not.toBe("h-1");
  });

  it("tells edges that requests may wait, until it runs", async () => {
    const [id = ""] = await createOn("h-1", [{}]);
    world.host("h-1").stores = false;
    await setState("h-1", "draining");
    await world.settle(8);
    const routes = createClient(
      RouteService,
      createRouterTransport(({ service }) => service(RouteService, world.gateway.gateway.routeService)),
    );
    const route = async () => {
      for await (const event of routes.watchRoutes({})) if (event.route?.sandboxId === id) return event.route;
      return undefined;
    };
    expect(await route()).toMatchObject({ state: S, autoResume: true });
    world.host("h-1").store(id);
    await world.settle();
    expect(await route()).toMatchObject({ state: R, autoResume: false });
  });

  it("leaves suspended what its owner suspends meanwhile", async () => {
    const [id = ""] = await createOn("h-1", [{}]);
    world.host("h-1").stores = false;
    await setState("h-1", "draining");
    await world.settle(8);
    const answer = await world.gateway.call("SuspendSandbox", { id });
    expect(answer.body.sandbox.state).toBe(S);
    world.host("h-1").store(id);
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: S, isMoving: false, hostId: "h-1" });
    expect(await world.sandbox(id)).toMatchObject({ durable: true });
  });

  it("lets go on where it is what is not in storage in time, and tries again later", async () => {
    const [id = ""] = await createOn("h-1", [{}]);
    const memory = await world.memory(id);
    world.host("h-1").stores = false;
    await setState("h-1", "draining");
    await world.settle(8);
    await world.fleet.clock.advance(gatewayLimits.drainStoreMs);
    await world.settle(3);
    expect(await world.record(id)).toMatchObject({ state: R, hostId: "h-1" });
    expect(await world.memory(id)).toBe(memory);
    world.host("h-1").stores = true;
    await world.fleet.clock.advance(gatewayLimits.drainRetryMs);
    await world.settle();
    expect((await world.record(id)).hostId).not.toBe("h-1");
    expect(await world.memory(id)).toBe(memory);
  });

  it("suspends nothing that has no room elsewhere", async () => {
    const [id = ""] = await createOn("h-1", [{ memory_mb: 5_000 }]);
    await createOn("h-2", [{ memory_mb: 5_000 }]);
    const [last = ""] = await createOn("h-3", [{ memory_mb: 5_000 }]);
    await setState("h-1", "draining");
    await world.settle(20);
    expect(await world.record(id)).toMatchObject({ state: R, hostId: "h-1" });
    expect(await actions(id)).not.toContain("sandbox.suspend");
    await world.gateway.call("DeleteSandbox", { id: last });
    await world.fleet.clock.advance(10_000);
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: R, hostId: "h-3" });
    await world.checkTruth();
  });

  it("finishes its moves when it is opened again, and when it is lost", async () => {
    const [id = "", other = ""] = await createOn("h-1", [{}, {}]);
    world.host("h-1").stores = false;
    await setState("h-1", "draining");
    await world.settle(8);
    expect(await states([id, other])).toEqual([S, S]);
    await setState("h-1", "open");
    world.host("h-1").store(id);
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: R, isMoving: false });
    world.host("h-1").store(other);
    await quiet();
    await world.fleet.lose("h-1");
    await world.settle();
    expect(await states([other])).toEqual([R]);
    await world.checkTruth();
  });

  it("tries again what a full host refused", async () => {
    const [id = ""] = await createOn("h-1", [{}]);
    const memory = await world.memory(id);
    for (const host of ["h-2", "h-3"])
      world.host(host).fault("resumeMachine", "before", Code.ResourceExhausted, 1, "no memory");
    await setState("h-1", "draining");
    await world.settle();
    await world.fleet.clock.advance(gatewayLimits.drainRetryMaxMs);
    await world.settle();
    expect(await world.record(id)).toMatchObject({ state: R });
    expect(await world.memory(id)).toBe(memory);
    await world.checkTruth();
  });

  it("loses nothing, whenever the gateway is killed", async () => {
    let events = 0;
    for (let hasDied = true; hasDied; events += 1) {
      const ids = await createOn("h-1", [{}]);
      const before = await memories(ids);
      world.mortal.arm(events + 1, events % 2 === 0 ? "before" : "after");
      await setState("h-1", "draining");
      await world.settle(30, 2);
      hasDied = world.mortal.isDead;
      const where = `at ${world.mortal.log.at(-1)} (event ${events + 1})`;
      await world.replaceGateway("b");
      await world.fleet.clock.advance(30_000);
      await world.settle();
      expect(await states(ids), where).toEqual([R]);
      expect(await memories(ids), where).toEqual(before);
      expect(world.host("h-1").machines.size, where).toBe(0);
      await world.checkTruth();
      if (!hasDied) break;
      await world.close();
      world = await LossWorld.open();
    }
    expect(events).toBeGreaterThan(10);
  });
});
