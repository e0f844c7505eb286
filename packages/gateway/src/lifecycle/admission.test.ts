/** A host that was declared lost is back: which of its machines may go on. */
import { MachinePhase } from "@cloche/protocol/host";
import { afterEach, beforeEach, expect, it } from "vitest";
import { LossWorld } from "../testing/loss-world.ts";

let world: LossWorld;
beforeEach(async () => {
  world = await LossWorld.open();
});
afterEach(() => world.close());

/** The host is lost while the sandbox's machine is in this phase, and comes back. */
async function lostAndBack(hostId: string, id: string, phase: MachinePhase): Promise<void> {
  const host = world.host(hostId);
  await world.fleet.lose(hostId);
  host.set(id, phase);
  await world.fleet.register(hostId);
  await world.fleet.clock.advance(3_000);
  await world.settle();
}

it("a machine that was resumed unheard is destroyed, because its durable sandbox may go on elsewhere", async () => {
  const id = await world.create();
  const { hostId } = await world.record(id);
  world.host(hostId).stores = true;
  await world.suspend(id);
  await lostAndBack(hostId, id, MachinePhase.RUNNING);
  expect(world.host(hostId).admitted).toEqual([[]]);
  expect(await world.record(id)).toMatchObject({ state: "SANDBOX_STATE_SUSPENDED" });
  const resumed = world.gateway.call("ResumeSandbox", { id });
  await world.settle();
  expect((await resumed).status).toBe(200);
  const holders = [...world.fleet.hosts.values()].filter(({ machines }) => machines.has(id));
  expect(holders.map((host) => host.phase(id))).toEqual([MachinePhase.RUNNING]);
});

it.each([
  ["suspended, of a durable sandbox", true, MachinePhase.SUSPENDED],
  ["running, of a sandbox whose image is in no storage", false, MachinePhase.RUNNING],
])("a machine goes on that is %s", async (_, isDurable, phase) => {
  const id = await world.create();
  const { hostId } = await world.record(id);
  world.host(hostId).stores = isDurable;
  await world.suspend(id);
  await lostAndBack(hostId, id, phase);
  expect(world.host(hostId).admitted).toEqual([[id]]);
  expect(world.host(hostId).phase(id)).toBe(phase);
});
