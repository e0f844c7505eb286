import { type Clock, silentLog } from "@cloche/base";
import { describe, expect, it } from "vitest";
import { HealthWatch, type WatchedMachine } from "./health-watch.ts";

class FakeMachine implements WatchedMachine {
  answers = true;
  standsStill = false;
  ended = 0;
  readonly id = "sbx-a";
  async healthy(): Promise<boolean> {
    return this.answers;
  }
  async endAsHung(): Promise<void> {
    this.ended += 1;
  }
}

function watchAt(): { watch: HealthWatch; vm: FakeMachine; check: (atMs: number) => Promise<void> } {
  let nowMs = 0;
  const clock: Clock = {
    nowMs: () => nowMs,
    monotonicMs: () => nowMs,
    sleep: () => new Promise(() => undefined),
  };
  const watch = new HealthWatch({ intervalMs: 1_000, hungAfterMs: 30_000 }, clock, silentLog);
  const vm = new FakeMachine();
  const check = (atMs: number): Promise<void> => {
    nowMs = atMs;
    return watch.check([vm]);
  };
  return { watch, vm, check };
}

describe("HealthWatch", () => {
  it("ends a machine that has not answered for the whole time, once", async () => {
    const { vm, check } = watchAt();
    vm.answers = false;
    for (const atMs of [0, 10_000, 29_999]) await check(atMs);
    expect(vm.ended).toBe(0);
    await check(30_000);
    expect(vm.ended).toBe(1);
  });

  it("forgives one that answers again", async () => {
    const { vm, check } = watchAt();
    vm.answers = false;
    await check(0);
    vm.answers = true;
    await check(20_000);
    vm.answers = false;
    for (const atMs of [40_000, 60_000]) await check(atMs);
    expect(vm.ended).toBe(0);
    await check(70_000);
    expect(vm.ended).toBe(1);
  });

  it("leaves alone a machine that stands still on our behalf", async () => {
    const { vm, check } = watchAt();
    vm.answers = false;
    vm.standsStill = true;
    for (const atMs of [0, 60_000, 120_000]) await check(atMs);
    expect(vm.ended).toBe(0);
  });
});
