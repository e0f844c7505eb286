import { describe, expect, it } from "vitest";
import { percentile, percentileRatio, seeded, shuffled } from "./statistics.ts";

describe("statistics", () => {
  it("interpolates percentiles", () => {
    expect(percentile([4, 1, 3, 2], 50)).toBe(2.5);
    expect(percentile([1, 2, 3, 4, 5], 95)).toBeCloseTo(4.8);
    expect(percentile([], 50)).toBeNaN();
    expect(percentile([7], 50)).toBe(7);
  });
  it("gives a ratio whose interval holds it, the same for the same seed", () => {
    const random = seeded(1);
    const a = Array.from({ length: 200 }, () => 20 + random());
    const b = Array.from({ length: 200 }, () => 10 + random());
    const ratio = percentileRatio(a, b, { p: 50, seed: 42, rounds: 200 });
    expect(ratio.low).toBeLessThanOrEqual(ratio.value);
    expect(ratio.high).toBeGreaterThanOrEqual(ratio.value);
    expect(ratio.value).toBeCloseTo(1.95, 1);
    expect(percentileRatio(a, b, { p: 50, seed: 42, rounds: 200 })).toEqual(ratio);
  });
  it("shuffles without losing or doubling", () => {
    const items = Array.from({ length: 50 }, (_, index) => index);
    const mixed = shuffled(items, seeded(3));
    expect(mixed).not.toEqual(items);
    expect([...mixed].sort((a, b) => a - b)).toEqual(items);
  });
});
