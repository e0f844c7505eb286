/** Automatic checkpoints: when they are taken, which are kept, and what happens after faults. */
import { Code } from "@connectrpc/connect";
import { afterEach, describe, expect, it } from "vitest";
import { World } from "../testing/world.ts";

const every = 60;
let worlds: World[] = [];
afterEach(async () => {
  for (const world of worlds) await world.kill();
  await worlds[0]?.database.close();
  worlds = [];
});

async function openWorld(owner = ""): Promise<World> {
  const world = await World.open(owner);
  worlds.push(world);
  return world;
}
const create = async (world: World): Promise<string> =>
  (await world.call("CreateSandbox", { checkpoint_every_seconds: every })).body.sandbox.id;
const taken = (world: World): string[] => world.host.calls.filter((one) => one.startsWith("checkpointM"));
/** Newest first. */
const kept = async (world: World) => (await world.call("ListCheckpoints")).body.checkpoints;

describe("checkpoint_every_seconds", () => {
  it("takes one so often, keeps the newest three, and leaves the owner's alone", async () => {
    const world = await openWorld();
    const id = await create(world);
    const { teamId, updatedAtMs } = (await world.database.sandboxes.get(id)) ?? {
      teamId: "",
      updatedAtMs: 0,
    };
    const own = "ckpt-00000000000000000001";
    world.host.addCheckpoint({ id: own, teamId, sandboxId: id, createdAt: "2020-01-01T00:00:00.000Z" });
    await world.clock.advance(59_000);
    expect(taken(world)).toEqual([]);
    await world.clock.advance(241_000);
    expect(taken(world)).toHaveLength(5);
    const checkpoints = await kept(world);
    expect(checkpoints.map(({ automatic }: { automatic: boolean }) => automatic)).toEqual([
      true,
      true,
      true,
      false,
    ]);
    expect(checkpoints[0].name).toMatch(/^automatic 2026-01-01T00:0/);
    expect(checkpoints[3].id).toBe(own);
    expect((await world.database.sandboxes.get(id))?.updatedAtMs).toBe(updatedAtMs);
  });

  it("never deletes the newest that is visible", async () => {
    const world = await openWorld();
    await create(world);
    await world.clock.advance(75_000);
    const [visible] = await kept(world);
    world.host.uploads = false;
    await world.clock.advance(6 * 75_000);
    const checkpoints = await kept(world);
    expect(checkpoints).toHaveLength(4);
    expect(checkpoints[3]).toMatchObject({ id: visible.id, visible: true });
  });

  it("takes none while it is suspended, and counts anew from the resume", async () => {
    const world = await openWorld();
    const id = await create(world);
    await world.call("SuspendSandbox", { id });
    await world.settle();
    await world.clock.advance(600_000);
    expect(taken(world)).toEqual([]);
    await world.call("ResumeSandbox", { id });
    await world.settle();
    await world.clock.advance(75_000);
    expect(taken(world)).toHaveLength(1);
  });

  it("is taken once by two gateways, and by the other when one died over it", async () => {
    const world = await openWorld("a");
    const other = await world.join("b");
    worlds.push(other);
    await create(world);
    await world.clock.advance(75_000);
    expect(taken(world)).toHaveLength(1);
    world.host.fault("checkpointMachine", "hang", Code.Unavailable, 1);
    await world.clock.advance(60_000);
    expect(taken(world)).toHaveLength(2);
    // Either gateway may have claimed the checkpoint.
    await world.kill();
    await world.clock.advance(135_000);
    expect(taken(world).length).toBeGreaterThanOrEqual(3);
  });

  it("is tried again after a failure, and tells of a quota that is used up", async () => {
    const world = await openWorld();
    const id = await create(world);
    world.host.fault("checkpointMachine", "before", Code.Internal, 1);
    await world.clock.advance(75_000);
    expect(await kept(world)).toEqual([]);
    await world.clock.advance(135_000);
    expect(await kept(world)).toHaveLength(1);
    world.host.fault("checkpointMachine", "before", Code.ResourceExhausted, 1, "the team has too many");
    await world.clock.advance(75_000);
    expect(await kept(world)).toHaveLength(1);
    const { entries } = (await world.call("ListAuditEntries", { subject: id })).body;
    expect(entries[0]).toMatchObject({
      action: "checkpoint.create",
      actor: "system:checkpoint",
      result: "resource_exhausted",
    });
  });

  it("takes one checkpoint where the answer was lost", async () => {
    const world = await openWorld();
    await create(world);
    world.host.fault("checkpointMachine", "after", Code.Unavailable, 2);
    await world.clock.advance(75_000);
    expect(taken(world)).toHaveLength(3);
    expect(await kept(world)).toHaveLength(1);
  });
});
