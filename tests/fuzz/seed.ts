// The seed of a fuzz run: printed, and taken from CLOCHE_FUZZ_SEED to replay one.
import { randomInt } from "node:crypto";

const given = Number(process.env["CLOCHE_FUZZ_SEED"]);

export const seed = Number.isInteger(given) && given !== 0 ? given : randomInt(1, 2 ** 31 - 1);
/** More runs find more: CLOCHE_FUZZ_RUNS multiplies them. */
const factor = Number(process.env["CLOCHE_FUZZ_RUNS"] ?? 1);

console.log(`fuzz seed ${seed}: replay with CLOCHE_FUZZ_SEED=${seed} npm test -- fuzz`);

/** How fast-check runs a property of `runs` cases. */
export const plan = (runs: number) => ({
  seed,
  numRuns: Math.round(runs * factor),
  // A failing request is small already; shrinking against a service that keeps state misleads.
  endOnFailure: true,
  verbose: 0 as const,
});

/** How long a test that was given `timeoutMs` may take when it does more runs. */
export const patience = (timeoutMs: number): number => Math.ceil(timeoutMs * Math.max(1, factor));
