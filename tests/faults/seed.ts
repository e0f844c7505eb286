// Random choices of a fault test: seeded, printed, replayable with CLOCHE_FAULT_SEED.
import { randomInt } from "node:crypto";

const given = Number(process.env["CLOCHE_FAULT_SEED"]);

export const seed = Number.isInteger(given) && given !== 0 ? given : randomInt(1, 2 ** 31 - 1);
console.log(`fault seed ${seed}: replay with CLOCHE_FAULT_SEED=${seed} npm test -- faults`);

export interface Choices {
  /** From 0 up to, not including, `below`. */
  below(below: number): number;
  oneOf<T>(list: readonly [T, ...T[]]): T;
}

/** The same choices for the same seed (mulberry32). */
export function choices(from: number): Choices {
  let state = from >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (limit: number): number => Math.floor(next() * limit);
  return { below, oneOf: (list) => list[below(list.length)] ?? list[0] };
}
