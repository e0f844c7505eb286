import { createClient, createRouterTransport } from "@connectrpc/connect";
import { newSandboxId } from "@cloche/protocol";
import { HostService, type Machine, MachinePhase } from "@cloche/protocol/host";
import { randomBytes } from "node:crypto";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type FaultMode, FakeWorld } from "../testing/fake-world.ts";
import { RestartBudget, restartsMax } from "./restart-after-crash.ts";

it("gives each machine its restarts, and new ones as the old grow old", () => {
  let nowMs = 1_000_000;
  const budget = new RestartBudget(() => nowMs);
  for (let round = 0; round < restartsMax; round += 1) {
    expect(budget.take("a")).toBe(true);
    nowMs += 60_000;
  }
  expect(budget.take("a")).toBe(false);
  expect(budget.take("b")).toBe(true);
  nowMs += 600_000 - restartsMax * 60_000; // the first of them is ten minutes old
  expect(budget.take("a")).toBe(true);
  expect(budget.take("a")).toBe(false);
});

describe("a machine that ended", () => {
  let world: FakeWorld;
  const id = newSandboxId((length) => new Uint8Array(randomBytes(length)));
  const size = { cpus: 1, memoryMb: 256, diskMb: 1_024 };
  const spec = { sandboxId: id, teamId: "team-t", name: "t", template: "base", ...size };
  const client = () =>
    createClient(
      HostService,
      createRouterTransport((router) => void router.service(HostService, world.host.service)),
    );
  beforeEach(async () => {
    world = await FakeWorld.open();
    await world.start();
    await client().createMachine({ spec });
  });
  afterEach(() => world.close());

  /** The machine once its restart is over, whose message says so. */
  async function settled(words: string): Promise<Machine> {
    const look = () => client().getMachine({ sandboxId: id });
    await expect.poll(async () => (await look()).errorMessage).toContain(words);
    // Waits for its turn, and changes nothing.
    await client()
      .createMachine({ spec })
      .catch(() => undefined);
    return await look();
  }
  /** The next effect of this name fails. */
  const failOnce = (effect: string): void => {
    const failing = new Set([effect]);
    world.failing.has = (name) => failing.delete(name);
  };

  it("by itself is started again from its disk, whatever fails once meanwhile", async () => {
    world.countEffects();
    await world.crash(id, "at first");
    const again = { phase: MachinePhase.RUNNING, errorMessage: expect.stringMatching(/^started again/) };
    expect(await settled("at first")).toMatchObject(again);
    const effects = world.effectCount;
    expect(effects).toBeGreaterThan(5);
    for (const mode of ["before", "after"] satisfies FaultMode[])
      for (let at = 0; at < effects; at += 1) {
        // A start of the host gives each machine its restarts anew.
        await world.host.stop({ suspend: false });
        await world.start();
        world.fault(at, mode);
        const what = `effect ${at} failed ${mode}`;
        await world.crash(id, what);
        expect(await settled(what), what).toMatchObject(again);
        expect(world.machines.size).toBe(1);
      }
  });

  it("by itself is left failed when its restarts are used up, and says what failed last", async () => {
    world.failing.add("driver create");
    await world.crash(id, "it was killed");
    const machine = await settled("could not be started again");
    expect(machine.phase).toBe(MachinePhase.FAILED);
    expect(machine.errorMessage).toBe(
      "it was killed; it could not be started again from its disk: " +
        "driver create failed before it took effect",
    );
    expect(world.effects.filter((name) => name === "driver create")).toHaveLength(1 + restartsMax);
  });

  it("by itself and cannot be stopped is left failed, and the host lives on", async () => {
    world.failing.add("driver stopMachine");
    await world.crash(id, "it was killed");
    expect(await settled("could not be started again")).toMatchObject({ phase: MachinePhase.FAILED });
    world.failing.clear();
  });

  it("in a reboot is started from its disk, though a start fails once", async () => {
    await world.host.stop({ suspend: false });
    await world.reboot();
    failOnce("driver create");
    await world.start();
    expect(await settled("started from its disk")).toMatchObject({ phase: MachinePhase.RUNNING });
  });
});
