import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { countdown } from "./countdown.ts";

let nowMs = 0;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  vi.spyOn(performance, "now").mockImplementation(() => nowMs);
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});
/** Lets the machine run. */
function run(durationMs: number): void {
  for (let left = durationMs; left > 0; left -= 100) {
    nowMs += 100;
    vi.advanceTimersByTime(100);
  }
}

it("fires once, after its time", () => {
  const fire = vi.fn();
  countdown(2_500, fire);
  run(2_400);
  expect(fire).not.toHaveBeenCalled();
  run(5_000);
  expect(fire).toHaveBeenCalledOnce();
});

it("does not count the time that the machine slept", () => {
  const fire = vi.fn();
  countdown(60_000, fire);
  run(5_000);
  nowMs += 3_600_000;
  run(50_000);
  expect(fire).not.toHaveBeenCalled();
  run(6_000);
  expect(fire).toHaveBeenCalledOnce();
});

it("can be stopped", () => {
  const fire = vi.fn();
  countdown(1_500, fire)();
  run(5_000);
  expect(fire).not.toHaveBeenCalled();
});
