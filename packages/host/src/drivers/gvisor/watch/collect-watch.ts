// What a sentry holds for programs (full sockets, pipes, queues) is memory of Go. When its program has ended it stays until Go next collects,
// which may take two minutes, and then goes back to the kernel bit by bit. Until it is collected, the guest's memory guard
// (native/guest/kernel-memory.c) cannot tell what is held from what is left over: so the sentry is told to collect. Until it is back, the
// machine lacks it: so its limit rises by as much meanwhile. It rises, too, while the machine has more than was promised and whoever took
// it is not ended yet. One timer for all machines of a driver.
import { type Clock, type Log, systemClock } from "@cloche/base";
import type { Memory } from "./storm.ts";

/** A machine as the watch sees it; the same object for as long as it lives. */
export interface CollectedMachine {
  readonly id: string;
  /** Because of us: frozen, or in the middle of a snapshot. */
  readonly standsStill: boolean;
  readonly memory: Memory;
  /** With the page cache of files, which the kernel drops by itself. Cheap, asked at every look. */
  chargedBytes(): number;
  /** Without it. Private: of the sentry and of the little that runs beside it, but none of the programs'. */
  sizes(): { memoryBytes: number; privateBytes: number };
  collect(): Promise<void>;
  limitMemory(bytes: number): Promise<void>;
}

const MIB = 1024 * 1024;
const LOOK_EVERY_MS = 200;
/** Below what lets the guard kill: what it needs for itself lies above what was promised. */
const ABOVE_PROMISE_BYTES = 96 * MIB;
/** A collection of a full GiB takes half a second of a processor. */
const REST_MS = 400;
/** While it stays above. */
const REST_MOST_MS = 6_400;
/** What a machine's limit has for the sentry itself (unit-limits.ts). */
const PRIVATE_BYTES = 128 * MIB;
/** The limit rises and falls by so much at once. */
const STEP_BYTES = 32 * MIB;

interface Seen {
  collecting: boolean;
  restMs: number;
  notBeforeMs: number;
  /** By how much its limit is raised; undefined: not known, for a service of before may have raised it. */
  raised: number | undefined;
}

export class CollectWatch {
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #seen = new WeakMap<CollectedMachine, Seen>();
  #timer: NodeJS.Timeout | undefined;

  constructor(log: Log, clock: Clock = systemClock) {
    this.#log = log;
    this.#clock = clock;
  }

  start(machines: () => Iterable<CollectedMachine>): void {
    this.#timer ??= setInterval(() => {
      for (const machine of machines()) void this.look(machine);
    }, LOOK_EVERY_MS).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** Resolves when what this look began is over. */
  async look(machine: CollectedMachine): Promise<void> {
    if (machine.standsStill) return;
    const seen = this.#seenOf(machine);
    try {
      const half = machine.memory.promised / 2;
      if (machine.chargedBytes() < half && seen.raised === 0) return;
      const { memoryBytes, privateBytes } = machine.sizes();
      await this.#raise(machine, seen, memoryBytes, privateBytes);
      const hasTooMuch = privateBytes > half || memoryBytes > machine.memory.promised + ABOVE_PROMISE_BYTES;
      if (hasTooMuch) await this.#collect(machine, seen);
      else seen.restMs = REST_MS;
    } catch (err) {
      // It may have ended meanwhile, which its exit tells.
      this.#log.debug({ err, sandbox_id: machine.id }, "a sentry did not collect");
    }
  }

  async #raise(
    machine: CollectedMachine,
    seen: Seen,
    memoryBytes: number,
    privateBytes: number,
  ): Promise<void> {
    const { promised, limit } = machine.memory;
    const most = promised / 2 + PRIVATE_BYTES;
    // Whoever took more than was promised is about to be ended, by the guard or as a fork bomb: the rest must live until then.
    const extra = memoryBytes > promised ? most : Math.min(most, Math.max(0, privateBytes - PRIVATE_BYTES));
    const raised = Math.ceil(extra / STEP_BYTES) * STEP_BYTES;
    if (raised === seen.raised) return;
    await machine.limitMemory(limit + raised);
    seen.raised = raised;
  }

  async #collect(machine: CollectedMachine, seen: Seen): Promise<void> {
    if (seen.collecting || this.#clock.monotonicMs() < seen.notBeforeMs) return;
    seen.collecting = true;
    try {
      await machine.collect();
    } finally {
      seen.collecting = false;
      seen.notBeforeMs = this.#clock.monotonicMs() + seen.restMs;
      seen.restMs = Math.min(seen.restMs * 2, REST_MOST_MS);
    }
  }

  #seenOf(machine: CollectedMachine): Seen {
    const known = this.#seen.get(machine);
    if (known) return known;
    const seen: Seen = { collecting: false, restMs: REST_MS, notBeforeMs: -Infinity, raised: undefined };
    this.#seen.set(machine, seen);
    return seen;
  }
}
