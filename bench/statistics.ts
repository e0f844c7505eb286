/** Order statistics and a seeded bootstrap: the same samples always give the same interval. */

/** The p-th percentile (0 to 100) by linear interpolation; NaN without samples. */
export function percentile(samples: readonly number[], p: number): number {
  if (samples.length === 0) return Number.NaN;
  const sorted = [...samples].sort((a, b) => a - b);
  const position = ((sorted.length - 1) * p) / 100;
  const below = Math.floor(position);
  const low = sorted[below] ?? Number.NaN;
  const high = sorted[Math.min(below + 1, sorted.length - 1)] ?? Number.NaN;
  return low + (high - low) * (position - below);
}

/** A small seeded generator (mulberry32): uniform in [0, 1). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

export interface Ratio {
  /** The percentile of `a` over that of `b`. */
  value: number;
  /** 95 % bootstrap confidence interval. */
  low: number;
  high: number;
}

/** How many times `b`'s p-th percentile `a`'s is (50: the medians), with a bootstrap interval from resampling both. */
export function percentileRatio(
  a: readonly number[],
  b: readonly number[],
  { p, seed, rounds = 1_000 }: { p: number; seed: number; rounds?: number },
): Ratio {
  const random = seeded(seed);
  const ratios: number[] = [];
  for (let round = 0; round < rounds; round += 1)
    ratios.push(percentile(resample(a, random), p) / percentile(resample(b, random), p));
  return {
    value: percentile(a, p) / percentile(b, p),
    low: percentile(ratios, 2.5),
    high: percentile(ratios, 97.5),
  };
}

function resample(samples: readonly number[], random: () => number): number[] {
  return samples.map(() => samples[Math.floor(random() * samples.length)] ?? Number.NaN);
}

/** Fisher-Yates with a given generator; a new array. */
export function shuffled<T>(items: readonly T[], random: () => number): T[] {
  const result = [...items];
  for (let last = result.length - 1; last > 0; last -= 1) {
    const pick = Math.floor(random() * (last + 1));
    [result[last], result[pick]] = [result[pick] as T, result[last] as T];
  }
  return result;
}
