import { expect, test } from "vitest";
import { burstMemoryMs, burstMs, RecentBursts } from "./recent-bursts.ts";

/** Notes `count` requests, one every `everyMs`. */
function ask(bursts: RecentBursts, count: number, fromMs: number, everyMs: number): void {
  for (let asked = 0; asked < count; asked += 1) bursts.note(fromMs + asked * everyMs);
}

test("wants as many as were asked for within seconds, from the least to the most", () => {
  const bursts = new RecentBursts(2, 40);
  expect(bursts.wanted(0)).toBe(2);
  bursts.note(1_000_000);
  expect(bursts.wanted(1_000_000)).toBe(2);
  ask(bursts, 8, 1_020_000, 0);
  expect(bursts.wanted(1_020_000)).toBe(8);
  // Five a second, for a minute.
  ask(bursts, 300, 1_040_000, 200);
  expect(bursts.wanted(1_100_000)).toBe(40);
  expect(burstMs / 200).toBeGreaterThan(40);
  const slow = new RecentBursts(2, 40);
  ask(slow, 100, 0, burstMs / 5);
  expect(slow.wanted(200_000)).toBe(5);
});

test("forgets half of a burst after a while without one as large, and at last all of it", () => {
  const bursts = new RecentBursts(2, 100);
  ask(bursts, 50, 1_000, 0);
  expect(bursts.wanted(999 + burstMemoryMs)).toBe(50);
  expect(bursts.wanted(1_000 + burstMemoryMs)).toBe(25);
  // A smaller burst prolongs nothing; one of the present size does.
  ask(bursts, 20, 2_000 + burstMemoryMs, 0);
  expect(bursts.wanted(1_000 + 2 * burstMemoryMs)).toBe(13);
  ask(bursts, 13, 1_000 + 2 * burstMemoryMs, 0);
  expect(bursts.wanted(1_000 + 3 * burstMemoryMs - 1)).toBe(13);
  expect(bursts.wanted(1_000 + 9 * burstMemoryMs)).toBe(2);
});

test("a most that is less than the least counts as it", () => {
  const bursts = new RecentBursts(4, 0);
  ask(bursts, 9, 0, 0);
  expect(bursts.wanted(0)).toBe(4);
});
