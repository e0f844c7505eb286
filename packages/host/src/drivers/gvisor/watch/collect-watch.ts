/**
 * Makes sentries collect garbage, and raises memory limits meanwhile. Buffers that a sentry holds for programs (sockets, pipes, queues) lie
 * on its Go heap. When the program has ended, they stay until Go's next collection, up to two minutes later, and return to the kernel bit
 * by bit. Until a collection, the guest's memory guard (native/guest/kernel-memory.c) cannot tell used from unused buffers, so the watch
 * asks for one. Until the memory has returned, the machine lacks it, so its limit is raised by as much. The limit is also raised while
 * the machine has more than was promised, until the program that took it is ended. One timer for all machines of a driver.
 */
import { type Clock, type Log, systemClock } from "@cloche/base";
import type { Memory } from "../storm.ts";

/** A machine as the watch sees it; the same object for as long as it lives. */
export interface CollectedMachine {
  readonly id: string;
  /** Whether we keep it from running: frozen, or in the middle of a snapshot. */
  readonly standsStill: boolean;
  readonly memory: Memory;
  /** Memory including page cache, which the kernel drops by itself. Cheap: called at every look. */
  chargedBytes(): number;
  /** Memory without page cache. `privateBytes`: of sentry and gofer, without the memory of programs. */
  sizes(): { memoryBytes: number; privateBytes: number };
  collect(): Promise<void>;
  limitMemory(bytes: number): Promise<void>;
}

const bytesPerMib = 1024 * 1024;
const checkEveryMs = 200;
/** Less than the excess at which the guest's guard kills. The sentry's own memory comes above the promise. */
const abovePromiseBytes = 96 * bytesPerMib;
/** Pause after a collection. Collecting a full GiB takes half a second of a CPU. */
const restLengthMs = 400;
/** The pause doubles up to this while memory stays high. */
const restMostMs = 6_400;
/** Part of a machine's limit meant for the sentry itself (unit-limits.ts). */
const privateBytesLimit = 128 * bytesPerMib;
/** The limit changes in multiples of this. */
const stepBytes = 32 * bytesPerMib;

interface Seen {
  collecting: boolean;
  restMs: number;
  notBeforeMs: number;
  /** By how much the limit is raised; undefined: unknown, because the service before may have raised it. */
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
      for (const machine of machines()) void this.check(machine);
    }, checkEveryMs).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** Resolves when the work that this look began is over. */
  async check(machine: CollectedMachine): Promise<void> {
    if (machine.standsStill) return;
    const seen = this.#seenOf(machine);
    try {
      const half = machine.memory.promised / 2;
      if (machine.chargedBytes() < half && seen.raised === 0) return;
      const { memoryBytes, privateBytes } = machine.sizes();
      await this.#raise(machine, seen, memoryBytes, privateBytes);
      const hasTooMuch = privateBytes > half || memoryBytes > machine.memory.promised + abovePromiseBytes;
      if (hasTooMuch) await this.#collect(machine, seen);
      else seen.restMs = restLengthMs;
    } catch (err) {
      // The machine may have ended; exit-watch.ts reports that.
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
    const most = promised / 2 + privateBytesLimit;
    // The program that took more than was promised is about to be killed, by the guard or as a fork bomb; the others must survive.
    const extra =
      memoryBytes > promised ? most : Math.min(most, Math.max(0, privateBytes - privateBytesLimit));
    const raised = Math.ceil(extra / stepBytes) * stepBytes;
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
      seen.restMs = Math.min(seen.restMs * 2, restMostMs);
    }
  }

  #seenOf(machine: CollectedMachine): Seen {
    const known = this.#seen.get(machine);
    if (known) return known;
    const seen: Seen = { collecting: false, restMs: restLengthMs, notBeforeMs: -Infinity, raised: undefined };
    this.#seen.set(machine, seen);
    return seen;
  }
}
