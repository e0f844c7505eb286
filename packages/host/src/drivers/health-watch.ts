/**
 * Finds machines that hang: stopped, stuck, or without an agent that answers. One timer for all machines of a driver. A machine that
 * fails every check during `hungAfterMs` is ended; the driver reports it like any other end (restart-after-crash.ts).
 *
 *   answers ──a check fails──▶ suspect since t ──a check succeeds──▶ answers
 *                                   └──now − t ≥ hungAfterMs──▶ ended as hung
 */
import { boundedLog, type Clock, type Log, Polls } from "@cloche/base";

export interface HealthOptions {
  readonly intervalMs: number;
  /** Long enough for a host under heavy load: ending a machine that is only slow loses its memory. */
  readonly hungAfterMs: number;
}

/** A machine as the watch sees it; the same object for as long as it lives. */
export interface WatchedMachine {
  readonly id: string;
  /** Whether we keep it from answering: it is paused, frozen, or in the middle of a snapshot. */
  readonly standsStill: boolean;
  /** Whether it answers, within `timeoutMs`. */
  healthy(timeoutMs: number): Promise<boolean>;
  endAsHung(): Promise<void>;
}

export class HealthWatch {
  readonly #options: HealthOptions;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #suspects = new Map<WatchedMachine, number>();
  readonly #polls: Polls;
  #timer: NodeJS.Timeout | undefined;
  #running = false;

  constructor(options: HealthOptions, clock: Clock, log: Log) {
    this.#options = options;
    this.#clock = clock;
    this.#log = boundedLog(log);
    this.#polls = new Polls(clock);
  }

  start(machines: () => Iterable<WatchedMachine>): void {
    this.#timer ??= setInterval(() => void this.check(machines()), this.#options.intervalMs).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#suspects.clear();
  }

  /** Checks every machine once. Rounds do not overlap; a machine that does not answer does not delay the next round. */
  async check(machines: Iterable<WatchedMachine>): Promise<void> {
    if (this.#running) return;
    this.#running = true;
    try {
      const all = new Set(machines);
      for (const gone of this.#suspects.keys()) if (!all.has(gone)) this.#suspects.delete(gone);
      await this.#polls.each([...all], (machine) => this.#checkOne(machine));
    } finally {
      this.#running = false;
    }
  }

  async #checkOne(machine: WatchedMachine): Promise<void> {
    const { intervalMs, hungAfterMs } = this.#options;
    const since = this.#suspects.get(machine) ?? this.#clock.monotonicMs();
    if (machine.standsStill || (await machine.healthy(intervalMs)) || machine.standsStill) {
      this.#suspects.delete(machine);
      return;
    }
    this.#suspects.set(machine, since);
    if (this.#clock.monotonicMs() - since < hungAfterMs) return;
    this.#suspects.delete(machine);
    this.#log.warn({ sandbox_id: machine.id }, "a machine stopped answering; ending it");
    await machine
      .endAsHung()
      .catch((err: unknown) => this.#log.error({ err, sandbox_id: machine.id }, "cannot end a machine"));
  }
}
