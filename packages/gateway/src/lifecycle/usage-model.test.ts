/** Compares compute time with the written states and with what the machines really did; kills at any effect. */
import { MachinePhase } from "@cloche/protocol/host";
import fc from "fast-check";
import { expect, it } from "vitest";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import { World } from "../testing/world.ts";

/** Adds up how long each thing was on. */
class Stopwatches {
  readonly #since = new Map<string, number>();
  readonly #total = new Map<string, number>();

  set(id: string, isOn: boolean, nowMs: number): void {
    const since = this.#since.get(id);
    if (since !== undefined) this.#total.set(id, (this.#total.get(id) ?? 0) + nowMs - since);
    if (isOn) this.#since.set(id, nowMs);
    else this.#since.delete(id);
  }

  totalMs(id: string, nowMs: number): number {
    this.set(id, this.#since.has(id), nowMs);
    return this.#total.get(id) ?? 0;
  }
}

class Observed {
  readonly world: World;
  readonly states = new Stopwatches();
  readonly machines = new Stopwatches();
  readonly ids = new Set<string>();
  /** Sandboxes whose machine ended by itself. */
  readonly lost = new Set<string>();

  constructor(world: World) {
    this.world = world;
    const { sandboxes } = world.database;
    const change = sandboxes.change.bind(sandboxes);
    sandboxes.change = async (read: SandboxRecord, patch: SandboxPatch, ...rest) => {
      const changed = await change(read, patch, ...rest);
      if (changed !== undefined && patch.state !== undefined) {
        this.ids.add(changed.id);
        this.states.set(changed.id, changed.state === "SANDBOX_STATE_RUNNING", changed.updatedAtMs);
      }
      return changed;
    };
    const set = world.host.set.bind(world.host);
    world.host.set = (id, phase, changes) => {
      const before = world.host.phase(id);
      const isRunning = phase === MachinePhase.RUNNING;
      const nowMs = world.clock.nowMs();
      this.machines.set(id, isRunning, nowMs);
      const hasBegun = isRunning && before !== MachinePhase.RUNNING && before !== MachinePhase.SUSPENDING;
      return set(id, phase, { ...changes, ...(hasBegun && { runningSinceUnixMs: BigInt(nowMs) }) });
    };
  }

  async check(): Promise<void> {
    const { database, clock } = this.world;
    const teamId = (await database.teams.all())[0]?.id ?? "";
    const nowMs = clock.nowMs();
    const records = await database.sandboxes.all();
    const ids = [...this.ids, ...records.map(({ id }) => id)];
    const open = (await database.usage.open([...new Set(ids)])).map(({ sandboxId }) => sandboxId);
    const running = records.filter(({ state }) => state === "SANDBOX_STATE_RUNNING");
    expect(open.toSorted()).toEqual(running.map(({ id }) => id).toSorted());
    for (const id of this.ids) {
      const counted = await database.usage.totalMs({ teamId, sandboxId: id, fromMs: 0, toMs: nowMs });
      const states = this.states.totalMs(id, nowMs);
      if (this.lost.has(id)) expect(counted).toBeLessThanOrEqual(states);
      else expect(counted).toBe(states);
      expect(counted).toBeLessThanOrEqual(this.machines.totalMs(id, nowMs));
    }
  }
}

const slot = fc.integer({ min: 0, max: 2 });
const ms = fc.integer({ min: 1, max: 150_000 });
const step = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant("create" as const) }) },
  { weight: 8, arbitrary: fc.record({ do: fc.constantFrom("suspend", "resume", "fork", "delete"), slot }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant("wait" as const), ms }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("crash" as const), slot }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant("kill" as const),
      method: fc.constantFrom("SuspendSandbox", "ResumeSandbox", "CreateSandbox", "ListSandboxes"),
      slot,
      event: fc.integer({ min: 1, max: 25 }),
      when: fc.constantFrom("before" as const, "after" as const),
      awayMs: ms,
      reboots: fc.boolean(),
    }),
  },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

async function act({ world, lost }: Observed, one: Step): Promise<void> {
  const ids = (await world.database.sandboxes.all()).map(({ id }) => id).toSorted();
  const idAt = (index: number): string => ids[index % Math.max(1, ids.length)] ?? "sbx-00000000000000000000";
  switch (one.do) {
    case "create":
      return void (await world.callPassingTime("CreateSandbox"));
    case "suspend":
      return void (await world.callPassingTime("SuspendSandbox", { id: idAt(one.slot) }));
    case "resume":
      return void (await world.callPassingTime("ResumeSandbox", { id: idAt(one.slot) }));
    case "fork":
      return void (await world.callPassingTime("ForkSandbox", { source_sandbox_id: idAt(one.slot) }));
    case "delete":
      return void (await world.callPassingTime("DeleteSandbox", { id: idAt(one.slot) }));
    case "wait":
      return await world.clock.advance(one.ms);
    case "crash":
      lost.add(idAt(one.slot));
      return world.host.machines.has(idAt(one.slot))
        ? world.host.crash(idAt(one.slot), "crashed")
        : undefined;
    case "kill": {
      world.mortal.arm(one.event, one.when);
      await world.callPassingTime(one.method, { id: idAt(one.slot) });
      world.mortal.kill();
      if (one.reboots) {
        for (const id of world.host.machines.keys()) lost.add(id);
        world.host.reboot();
      }
      await world.clock.jump(one.awayMs);
      return await world.restart();
    }
  }
}

const seed = Number(process.env["CLOCHE_SEED"] ?? 7);
const runs = Number(process.env["CLOCHE_FAULT_RUNS"] ?? 8);

it(`compute time is what the states say, and never more than machines ran, seed ${seed}`, {
  timeout: runs * 15_000,
}, async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 16 }), async (steps) => {
      const observed = new Observed(await World.open());
      const { world } = observed;
      try {
        for (const one of steps) await act(observed, one);
        await world.settle();
        await world.clock.advance(70_000);
        await world.settle();
        await observed.check();
      } finally {
        await world.close();
      }
    }),
    { seed, numRuns: runs, interruptAfterTimeLimit: runs * 14_000 },
  );
});
