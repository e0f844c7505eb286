import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { KeepClock } from "./keep-clock.ts";

let nowMs = 0;
beforeEach(() => {
  nowMs = 0;
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  vi.spyOn(performance, "now").mockImplementation(() => nowMs);
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

function run(durationMs: number): void {
  for (let left = durationMs; left > 0; left -= 500) {
    nowMs += 500;
    vi.advanceTimersByTime(500);
  }
}

it("calls each after its time, and lets go of its timer", () => {
  const clock = new KeepClock();
  const [soon, late] = [vi.fn(), vi.fn()];
  clock.after(25_000, late);
  run(5_000);
  clock.after(1_000, soon);
  run(1_500);
  expect(soon).toHaveBeenCalledOnce();
  run(18_000);
  expect(late).not.toHaveBeenCalled();
  run(1_500);
  expect(late).toHaveBeenCalledOnce();
  expect(vi.getTimerCount()).toBe(0);
});

it("does not count the time that the machine slept", () => {
  const clock = new KeepClock();
  const call = vi.fn();
  clock.after(3_600_000, call);
  run(60_000);
  nowMs += 12 * 3_600_000;
  run(3_400_000);
  expect(call).not.toHaveBeenCalled();
  run(200_000);
  expect(call).toHaveBeenCalledOnce();
});

it("takes what is added while it calls", () => {
  const clock = new KeepClock();
  const second = vi.fn();
  clock.after(1_000, () => clock.after(1_000, second));
  run(1_500);
  expect(second).not.toHaveBeenCalled();
  run(1_500);
  expect(second).toHaveBeenCalledOnce();
});
