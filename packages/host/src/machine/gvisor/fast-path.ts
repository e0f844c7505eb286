// systrap's fast path: the sentry and its programs wait for each other in a loop before they go to sleep. It serves programs
// that ask the kernel again and again, and takes the processor from all others: brief commands, a fork, a create. This runsc
// has it come on by itself, after some 3 ms of work, and looks 700 times a second whether it should (with the timer slack of
// keeper.c); it has no setting for it. So the two words that decide it are written into the sentry's memory: whether it may
// come on, and how long one look takes. When it may, is decided in fast-paths.ts.
import type { SentryMemory } from "./sentry-memory.ts";

/** Where the memory of one build of runsc has what. */
export interface FastPathLayout {
  /** A byte that forbids it while it is off (`neverEnableFastPath`). */
  readonly forbidden: number;
  /** `fastpath`, what it remembers: periods until it comes on, of both sides, and four counts of failures. */
  readonly memory: number;
  /** Whether it is on, of both sides, a cache line apart. */
  readonly on: number;
  /** Its state's function, and that of both sides off. */
  readonly state: number;
  readonly off: bigint;
  /** Nanoseconds of one look, a constant in the code of `controlFastPath`. */
  readonly period: number;
}

const PERIOD_NS = 400_000;
/** It comes on two looks after it may. */
const RARER_PERIOD_NS = 5_000_000;
export function isFastPathAsBuilt(memory: SentryMemory, layout: FastPathLayout): boolean {
  return (
    memory.read(layout.forbidden, 1)[0] === 0 &&
    memory.read(layout.state, 8).readBigUInt64LE() === layout.off &&
    memory.read(layout.period, 4).readUInt32LE() === PERIOD_NS
  );
}

/** From here on it comes on only where it is allowed. Of a sentry in which nothing runs yet. */
export function tameFastPath(memory: SentryMemory, layout: FastPathLayout): void {
  memory.write(layout.period, words32(RARER_PERIOD_NS));
  memory.write(layout.forbidden, Buffer.of(1));
}

/**
 * Whether it may come on, of a sentry that is tame. The sentry may just be changing what is written here: then it is on for a
 * while longer, or off.
 */
export function allowFastPath(memory: SentryMemory, layout: FastPathLayout, allowed: boolean): void {
  memory.write(layout.forbidden, Buffer.of(allowed ? 0 : 1));
  if (allowed) return;
  memory.write(layout.state, words64(layout.off));
  memory.write(layout.on, Buffer.alloc(ON_BYTES));
  memory.write(layout.memory, words64(FIRST_PERIODS, FIRST_PERIODS, 0n, 0n, 0n, 0n));
}

/** Two words of four bytes, and the cache line between them, in which nothing is. */
const ON_BYTES = 4 + 64 + 4;
/** Until it comes on, as in a new sentry. */
const FIRST_PERIODS = 2n;

function words32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function words64(...values: bigint[]): Buffer {
  const bytes = Buffer.alloc(values.length * 8);
  values.forEach((value, index) => bytes.writeBigUInt64LE(value, index * 8));
  return bytes;
}
