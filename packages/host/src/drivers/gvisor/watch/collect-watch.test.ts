import { type Clock, silentLog } from "@cloche/base";
import { expect, it } from "vitest";
import { type CollectedMachine, CollectWatch } from "./collect-watch.ts";

const bytesPerMib = 1024 * 1024;

class FakeMachine implements CollectedMachine {
  readonly id = "sbx-a";
  readonly memory = { promised: 1_024 * bytesPerMib, limit: 1_408 * bytesPerMib };
  standsStill = false;
  chargedMib = 1_200;
  memoryMib = 1_200;
  privateMib = 100;
  collected = 0;
  collecting: Promise<void> = Promise.resolve();
  /** In MiB. */
  readonly limits: number[] = [];
  chargedBytes(): number {
    return this.chargedMib * bytesPerMib;
  }
  sizes(): { memoryBytes: number; privateBytes: number } {
    return { memoryBytes: this.memoryMib * bytesPerMib, privateBytes: this.privateMib * bytesPerMib };
  }
  collect(): Promise<void> {
    this.collected += 1;
    return this.collecting;
  }
  async limitMemory(bytes: number): Promise<void> {
    this.limits.push(bytes / bytesPerMib);
  }
}

let nowMs = 0;
const clock: Clock = {
  nowMs: () => nowMs,
  monotonicMs: () => nowMs,
  sleep: () => new Promise(() => undefined),
};

/** Looks every 200 ms for the given time. */
async function watched(machine: FakeMachine, forMs: number): Promise<number> {
  const watch = new CollectWatch(silentLog, clock);
  for (const until = nowMs + forMs; nowMs < until; nowMs += 200)
    await Promise.race([watch.check(machine), new Promise(setImmediate)]);
  return machine.collected;
}

it("collects where a machine has more than was promised, ever more seldom while that helps nothing", async () => {
  expect(await watched(new FakeMachine(), 200)).toBe(1);
  expect(await watched(new FakeMachine(), 1_200)).toBe(2);
  expect(await watched(new FakeMachine(), 60_000)).toBeLessThan(14);
});

it("collects where the sentry has more than half of the memory for itself", async () => {
  const holder = Object.assign(new FakeMachine(), { memoryMib: 700, chargedMib: 700, privateMib: 600 });
  expect(await watched(holder, 200)).toBe(1);
});

it("lets a machine have what its sentry has not given back yet, up to half of its memory", async () => {
  const machine = Object.assign(new FakeMachine(), { memoryMib: 900, chargedMib: 900 });
  const watch = new CollectWatch(silentLog, clock);
  for (const privateMib of [100, 100, 200, 210, 500, 5_000, 140, 100, 100]) {
    machine.privateMib = privateMib;
    await watch.check(machine);
  }
  expect(machine.limits).toEqual([1_408, 1_504, 1_792, 2_048, 1_440, 1_408]);
  // The program that takes too much is about to be killed.
  for (const memoryMib of [1_025, 1_300, 1_000]) {
    machine.memoryMib = memoryMib;
    await watch.check(machine);
  }
  expect(machine.limits.slice(-2)).toEqual([2_048, 1_408]);
  // An earlier service may have raised the limit, so it is set once even with little memory.
  const idle = Object.assign(new FakeMachine(), { memoryMib: 50, chargedMib: 50, privateMib: 20 });
  for (let i = 0; i < 3; i += 1) await watch.check(idle);
  expect(idle.limits).toEqual([1_408]);
});

it("leaves alone what has little, what only reads files, and what stands still", async () => {
  const little = Object.assign(new FakeMachine(), { memoryMib: 1_100, chargedMib: 1_100 });
  const reader = Object.assign(new FakeMachine(), { memoryMib: 300, chargedMib: 1_400 });
  const frozen = Object.assign(new FakeMachine(), { standsStill: true });
  for (const machine of [little, reader, frozen]) expect(await watched(machine, 2_000)).toBe(0);
});

it("waits for a sentry that takes its time, and goes on after one that fails", async () => {
  const slow = Object.assign(new FakeMachine(), { collecting: new Promise<void>(() => undefined) });
  expect(await watched(slow, 5_000)).toBe(1);
  const failing = new FakeMachine();
  failing.collect = () => {
    failing.collected += 1;
    return Promise.reject(new Error("the sentry closed its control socket"));
  };
  expect(await watched(failing, 1_200)).toBe(2);
});
