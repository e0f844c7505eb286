/**
 * Machines whose agents begin each answer and never complete it. No operation, start or stop waits for them for ever, and no other
 * machine is delayed by them.
 */
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { systemClock } from "@cloche/base";
import { newSandboxId } from "@cloche/protocol";
import { HostService, MachinePhase } from "@cloche/protocol/host";
import { randomBytes } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FakeWorld } from "../testing/fake-world.ts";

/** More machines than any loop handles at once. */
const many = 12;
const spec = (sandboxId: string) => ({
  sandboxId,
  teamId: "team-t",
  name: "t",
  template: "base",
  cpus: 1,
  memoryMb: 256,
  diskMb: 1_024,
});
const newId = (): string => newSandboxId((length) => new Uint8Array(randomBytes(length)));

describe("machines that hang", { timeout: 120_000 }, () => {
  let world: FakeWorld;
  let stopped: boolean;
  const client = () =>
    createClient(
      HostService,
      createRouterTransport((router) => void router.service(HostService, world.host.service)),
    );
  const make = async (count: number): Promise<string[]> => {
    const ids = Array.from({ length: count }, newId);
    for (const id of ids) await client().createMachine({ spec: spec(id) });
    return ids;
  };
  const phaseOf = async (sandboxId: string): Promise<MachinePhase> =>
    (await client().getMachine({ sandboxId })).phase;
  const untilPhase = async (sandboxId: string, phase: MachinePhase): Promise<void> => {
    while ((await phaseOf(sandboxId)) !== phase) await new Promise((resolve) => setImmediate(resolve));
  };

  beforeEach(async () => {
    world = await FakeWorld.open();
    // The host's own waits are thirty times shorter; calls to agents keep their deadlines of minutes.
    world.clock = { ...systemClock, sleep: (ms, signal) => systemClock.sleep(ms / 30, signal) };
    stopped = false;
    await world.start();
  });
  afterEach(async () => {
    world.hanging.clear();
    if (!stopped) await world.host.stop({ suspend: false });
    await world.reboot();
  });

  it("can be destroyed in the middle of a suspension", async () => {
    const [id = ""] = await make(1);
    world.hanging.add(id);
    const suspended = client()
      .suspendMachine({ sandboxId: id })
      .catch((error: unknown) => error);
    await untilPhase(id, MachinePhase.SUSPENDING);
    await client().destroyMachine({ sandboxId: id });
    expect(await suspended).toBeInstanceOf(Error);
    await expect(client().getMachine({ sandboxId: id })).rejects.toThrow("there is no machine");
    expect(world.machines.size).toBe(0);
  });

  it("do not keep a stop from ending, nor others from being suspended", async () => {
    const ids = await make(many + 1);
    const healthy = ids.pop() ?? "";
    for (const id of ids) world.hanging.add(id);
    const middle = ids[0] ?? "";
    const suspended = client()
      .suspendMachine({ sandboxId: middle })
      .catch((error: unknown) => error);
    await untilPhase(middle, MachinePhase.SUSPENDING);
    await world.host.stop({ suspend: true });
    stopped = true;
    expect(await suspended).toBeInstanceOf(Error);
    expect(await phaseOf(healthy)).toBe(MachinePhase.SUSPENDED);
    for (const id of ids) expect(await phaseOf(id)).toBe(MachinePhase.STOPPED);
    expect(world.machines.size).toBe(0);
  });

  it("do not keep a start from ending after a kill in the middle of their suspension", async () => {
    const ids = await make(many + 1);
    const healthy = ids.pop() ?? "";
    for (const id of ids) {
      world.hanging.add(id);
      void client()
        .suspendMachine({ sandboxId: id })
        .catch(() => undefined);
    }
    for (const id of ids) await untilPhase(id, MachinePhase.SUSPENDING);
    // A new host on the same computer: the killed one does nothing more.
    await world.start();
    expect(await phaseOf(healthy)).toBe(MachinePhase.RUNNING);
    await client().suspendMachine({ sandboxId: healthy });
    // Machines that still wait for their agent can be destroyed meanwhile.
    await Promise.all(ids.map((sandboxId) => client().destroyMachine({ sandboxId })));
    expect(world.machines.size).toBe(0);
  });
});
