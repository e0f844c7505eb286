// Units kept ready, so that a machine needs neither a sentry's start nor an agent's boot.
//
//   blank: runsc create is done; a snapshot (fork, resume) or the template is restored into it.
//   warm:  the template is restored into it too, on a fresh disk of its own, the users' namespaces are there, a request was
//          rehearsed, and its cgroup is frozen (systrap burns 2 % of a core when idle): a new machine thaws it and is there.
//
// Owns the units in it: nobody else knows them. After a crash of the service they belong to no machine and are swept.
import { apart, type Log } from "@cloche/base";
import type { Unit } from "./unit.ts";

/** The template may be made anew while it waits: its agent knows the secret of the one that it came from. */
export interface WarmUnit {
  unit: Unit;
  /** What its agent accepts for its first Assign. */
  secret: string;
}

export interface ReadyUnitsOptions {
  /** How many of each kind. */
  count: number;
  makeBlank(): Promise<Unit>;
  /** Turns a blank into a warm one. Absent: none are kept. */
  warm?: (blank: Unit) => Promise<WarmUnit>;
  destroy(unit: Unit): Promise<void>;
  log: Log;
}

/** Refilling waits this long after a unit was taken: whoever took it is still busy with it, on the same CPUs. */
const REFILL_AFTER_MS = 400;
/** Making failed: the next try comes later, or with the next unit taken. */
const RETRY_AFTER_MS = 30_000;

export class ReadyUnits {
  readonly #options: ReadyUnitsOptions;
  readonly #blank: Unit[] = [];
  readonly #warm: WarmUnit[] = [];
  #filling: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: ReadyUnitsOptions) {
    this.#options = options;
  }

  /** Begins to fill; answers at once. */
  start(): void {
    this.#refillAfter(0);
  }

  /** Destroys what is ready. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#filling;
    const warm = this.#warm.splice(0).map(({ unit }) => unit);
    for (const unit of [...this.#blank.splice(0), ...warm]) await this.#options.destroy(unit);
  }

  takeBlank(): Promise<Unit | undefined> {
    return this.#take(this.#blank, (unit) => unit);
  }

  takeWarm(): Promise<WarmUnit | undefined> {
    return this.#take(this.#warm, ({ unit }) => unit);
  }

  counts(): { blank: number; warm: number } {
    return { blank: this.#blank.length, warm: this.#warm.length };
  }

  /** Resolves when nothing is being made; for tests and benchmarks. */
  async settled(): Promise<void> {
    while (this.#timer !== undefined || this.#filling !== undefined) {
      await (this.#filling ?? new Promise((resolve) => setTimeout(resolve, REFILL_AFTER_MS)));
    }
  }

  /** One that died while it waited is skipped. */
  async #take<Ready>(from: Ready[], unitOf: (ready: Ready) => Unit): Promise<Ready | undefined> {
    for (let ready = from.shift(); ready !== undefined; ready = from.shift()) {
      this.#refillAfter(REFILL_AFTER_MS);
      if (await unitOf(ready).isAlive()) return ready;
      await this.#options.destroy(unitOf(ready));
    }
    return undefined;
  }

  #refillAfter(delayMs: number): void {
    clearTimeout(this.#timer);
    if (this.#closed || this.#options.count === 0) return;
    // Whoever took a unit has no part in the making of the next.
    this.#timer = apart(() =>
      setTimeout(() => {
        this.#timer = undefined;
        this.#filling ??= this.#fill().finally(() => {
          this.#filling = undefined;
        });
      }, delayMs),
    );
    this.#timer.unref();
  }

  async #fill(): Promise<void> {
    const { count, makeBlank, warm, destroy, log } = this.#options;
    try {
      while (!this.#closed) {
        const warmMissing = warm !== undefined && this.#warm.length < count;
        if (!warmMissing && this.#blank.length >= count) return;
        const unit = await makeBlank();
        if (!warmMissing || this.#blank.length < 1) {
          this.#blank.push(unit);
          continue;
        }
        try {
          this.#warm.push(await warm(unit));
        } catch (error) {
          await destroy(unit);
          throw error;
        }
      }
    } catch (error) {
      log.warn({ err: error }, "no machine could be made ahead");
      this.#refillAfter(RETRY_AFTER_MS);
    }
  }
}
