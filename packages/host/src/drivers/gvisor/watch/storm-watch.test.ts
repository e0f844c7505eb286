import { type Clock, silentLog } from "@cloche/base";
import { describe, expect, it } from "vitest";
import type { Load, Storm } from "../storm.ts";
import { StormWatch, type StormyMachine } from "./storm-watch.ts";

const bytesPerMib = 1024 * 1024;

class FakeMachine implements StormyMachine {
  readonly id = "sbx-a";
  readonly memory = { promised: 1_024 * bytesPerMib, limit: 1_408 * bytesPerMib };
  readonly processLimit = 1_024;
  standsStill = false;
  answers = false;
  hostTasks = 300;
  memoryMib = 100;
  cpuMs = 0;
  asked = 0;
  /** The crowd of each strike. */
  readonly strikes: number[] = [];
  storm: Storm | undefined;
  tasks(): number {
    return this.hostTasks;
  }
  load(atMs: number): Load {
    return { atMs, tasks: this.hostTasks, cpuMs: this.cpuMs, memoryBytes: this.memoryMib * bytesPerMib };
  }
  async healthy(): Promise<boolean> {
    this.asked += 1;
    return this.answers;
  }
  async endStorm(crowd: number): Promise<Storm | undefined> {
    this.strikes.push(crowd);
    return this.storm;
  }
}

/** Looks every 200 ms for the given time; `change` sets the machine's state before each look. */
async function watched(
  forMs: number,
  change: (machine: FakeMachine, atMs: number) => void,
): Promise<FakeMachine> {
  let nowMs = 0;
  const clock: Clock = {
    nowMs: () => nowMs,
    monotonicMs: () => nowMs,
    sleep: () => new Promise(() => undefined),
  };
  const watch = new StormWatch(silentLog, clock);
  const machine = new FakeMachine();
  for (; nowMs <= forMs; nowMs += 200) {
    machine.cpuMs = nowMs;
    change(machine, nowMs);
    await Promise.race([watch.check(machine), new Promise(setImmediate)]);
  }
  return machine;
}

describe("StormWatch", () => {
  const still = (): void => undefined;
  it("strikes when the agent gets no turn for a second and a half", async () => {
    expect((await watched(1_600, still)).strikes).toEqual([]);
    expect((await watched(1_800, still)).strikes).toEqual([512]);
  });

  it("takes fewer for a bomb while ever more start", async () => {
    const machine = await watched(1_800, (it, atMs) => (it.hostTasks = 300 + atMs));
    expect(machine.strikes).toEqual([256]);
  });

  it("strikes at once when memory runs out", async () => {
    const machine = await watched(1_600, (it, atMs) => {
      it.answers = true;
      it.hostTasks = 300 + atMs;
      it.memoryMib = 600 + atMs / 2;
    });
    expect(machine.strikes).toEqual([64]);
  });

  it("strikes when memory runs out and the agent owes an answer", async () => {
    const machine = await watched(1_600, (it, atMs) => {
      it.healthy = () => new Promise(() => undefined);
      it.memoryMib = 600 + atMs / 2;
    });
    expect(machine.strikes).toEqual([64]);
  });

  it("leaves one that could not be paused to the watch for those that hang", async () => {
    const machine = await watched(100_000, (it) => {
      it.endStorm = (crowd) => {
        it.strikes.push(crowd);
        return Promise.reject(new Error("it does not answer"));
      };
    });
    expect(machine.strikes).toHaveLength(1);
  });

  it("leaves what only allocates to the guard", async () => {
    const machine = await watched(2_000, (it, atMs) => {
      it.answers = true;
      it.memoryMib = 600 + atMs / 2;
    });
    expect(machine.strikes).toEqual([]);
  });

  it("lets a machine run that it paused in vain", async () => {
    expect((await watched(3_000, still)).strikes).toEqual([512, 512]);
  });

  it.each<[string, (machine: FakeMachine) => void, boolean]>([
    ["whose agent answers", (machine) => (machine.answers = true), true],
    ["that has few tasks", (machine) => (machine.hostTasks = 40), false],
    ["that is idle", (machine) => (machine.cpuMs = 0), false],
    ["that stands still on our behalf", (machine) => (machine.standsStill = true), false],
  ])("leaves one alone %s", async (_what, change, asked) => {
    const machine = await watched(10_000, change);
    expect([machine.strikes, machine.asked > 0]).toEqual([[], asked]);
    // Not at every look.
    expect(machine.asked).toBeLessThanOrEqual(13);
  });
});
