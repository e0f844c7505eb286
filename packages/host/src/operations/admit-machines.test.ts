/** A host in a fake world that is declared lost and comes back. */
import { randomBytes } from "node:crypto";
import { newSandboxId } from "@cloche/protocol";
import { Code } from "@connectrpc/connect";
import { afterEach, beforeEach, expect, it } from "vitest";
import { testKeys } from "../testing/data-plane-caller.ts";
import { clientOf, FakeCluster, FakeGuard } from "../testing/fake-cluster.ts";
import { FakeNames } from "../testing/fake-names.ts";
import { FakeWorld } from "../testing/fake-world.ts";

let world: FakeWorld;
let cluster: FakeCluster;
let guard: FakeGuard;

beforeEach(async () => {
  world = await FakeWorld.open();
  cluster = new FakeCluster(new FakeNames());
  guard = new FakeGuard();
  world.cluster = cluster.parts(guard);
  await world.start();
  await clientOf(world.host).setVerificationKeys(testKeys);
});
afterEach(() => world.close());

async function created(): Promise<string> {
  const sandboxId = newSandboxId(randomBytes);
  const shape = { runtime: "gvisor", template: "base", cpus: 1, memoryMb: 256, diskMb: 1_024 };
  await clientOf(world.host).createMachine({ spec: { sandboxId, teamId: "team-t", name: "t", ...shape } });
  return sandboxId;
}

/** Starts the host after it was declared lost; the start continues after the admission. */
async function startLost(): Promise<{ started: Promise<unknown> }> {
  cluster.isLost = true;
  const started = world.start();
  await expect.poll(() => world.host.lease?.awaitsAdmission).toBe(true);
  return { started };
}

it("machines that are no longer the host's never run again; the others go on", async () => {
  const [own, moved] = [await created(), await created()];
  const { started } = await startLost();
  const client = clientOf(world.host);
  expect(guard.isFrozen).toBe(true);
  expect((await client.listMachines({})).machines).toHaveLength(2);
  await expect(client.resumeMachine({ sandboxId: moved })).rejects.toMatchObject({ code: Code.Unavailable });
  await client.admitMachines({ sandboxIds: [own] });
  expect([...world.machines.keys()]).toEqual([own]);
  expect(guard.isFrozen).toBe(false);
  await started;
  expect((await client.listMachines({})).machines.map(({ sandboxId }) => sandboxId)).toEqual([own]);
  expect(await world.orphans(new Set([own]))).toEqual([]);
  // A second gateway's admission comes late: its list lacks a machine made since.
  await client.admitMachines({ sandboxIds: [] });
  expect([...world.machines.keys()]).toEqual([own]);
});

it("an operation that was cut off on a machine that is no longer the host's is dropped", async () => {
  const sandboxId = newSandboxId(randomBytes);
  const shape = { runtime: "gvisor", template: "base", cpus: 1, memoryMb: 256, diskMb: 1_024 };
  world.countEffects();
  const { killed } = world;
  world.fault(3, "kill-before");
  void clientOf(world.host)
    .createMachine({ spec: { sandboxId, teamId: "team-t", name: "t", ...shape } })
    .catch(() => undefined);
  await killed;
  const { started } = await startLost();
  await clientOf(world.host).admitMachines({ sandboxIds: [] });
  await started;
  expect(world.machines.size).toBe(0);
  expect(await world.orphans(new Set())).toEqual([]);
});

it("a stale gateway admits nothing", async () => {
  await created();
  const { started } = await startLost();
  const call = clientOf(world.host).admitMachines(
    { sandboxIds: [] },
    { headers: { "x-cloche-host-generation": "1" } },
  );
  await expect(call).rejects.toMatchObject({ code: Code.Aborted });
  await clientOf(world.host).admitMachines({ sandboxIds: [...world.machines.keys()] });
  await started;
  expect(world.machines.size).toBe(1);
});
