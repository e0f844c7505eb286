// Units kept ready, so that a machine needs neither a sentry's start nor an agent's boot.
//
//   blank: runsc create is done; a snapshot (fork, resume) or the template is restored into it. Frozen too. One more for each of
//          the shapes that are asked for again and again (recent-shapes.ts): those are _shaped_.
//   warm:  the template is restored into it too, on a fresh disk of its own, the users' namespaces are there, a request was
//          rehearsed, it is assigned to an identity that nobody has yet, and its cgroup is frozen (systrap burns 2 % of a core
//          when idle): a new machine of that identity thaws it and is there; one of another is assigned first.
//
// Owns the units in it: nobody else knows them. After a crash of the service they belong to no machine and are swept.
import { apart, type Log } from "@cloche/base";
import type { ReadyIdentity } from "../driver.ts";
import { RecentShapes, SHAPE_MEMORY_MS, type Shape, shapeKey } from "./recent-shapes.ts";
import type { Unit } from "./unit.ts";

export interface WarmUnit {
  unit: Unit;
  identity: ReadyIdentity;
}

export interface ReadyUnitsOptions {
  /** How many of each kind. Of blanks up to five times as many, where so many were asked for at once lately. */
  count: number;
  /** Of the default shape, or of that one. */
  makeBlank(shape?: Shape): Promise<Unit>;
  /** Stills a blank, or lets it go on. */
  freeze(blank: Unit, frozen: boolean): Promise<void>;
  /** Turns a blank into a warm one. Absent: none are kept. */
  warm?: (blank: Unit) => Promise<WarmUnit>;
  destroy(unit: Unit): Promise<void>;
  /** Hears of every change: the identities of all warm ones. */
  offer?: (identities: ReadyIdentity[]) => void;
  log: Log;
}

/** Refilling waits this long after a unit was taken: whoever took it is still busy with it, on the same CPUs. */
const REFILL_AFTER_MS = 400;
/** A blank takes 12 MiB and, frozen, no CPU; making one takes as long as restoring into it. */
const BLANKS_PER_COUNT = 5;
/** How long a burst is remembered. */
const BURST_MEMORY_MS = 600_000;
/** Making failed: the next try comes later, or with the next unit taken. */
const RETRY_AFTER_MS = 30_000;

export class ReadyUnits {
  readonly #options: ReadyUnitsOptions;
  readonly #blank: Unit[] = [];
  readonly #warm: WarmUnit[] = [];
  /** By the key of the shape. */
  readonly #shaped = new Map<string, Unit>();
  readonly #shapes = new RecentShapes();
  #forgettingShapes: NodeJS.Timeout | undefined;
  #filling: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #closed = false;
  /** Blanks asked for since refilling last began. */
  #burst = 0;
  #blanksWanted: number;
  #forgetting: NodeJS.Timeout | undefined;
  /** Machines that are being made for somebody now. */
  #making = 0;

  constructor(options: ReadyUnitsOptions) {
    this.#options = options;
    this.#blanksWanted = options.count;
  }

  /** Begins to fill; answers at once. */
  start(): void {
    this.#refillAfter(0);
  }

  /** Destroys what is ready. */
  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#forgetting);
    clearTimeout(this.#forgettingShapes);
    await this.#filling;
    const warm = this.#warm.splice(0).map(({ unit }) => unit);
    this.#offer();
    const shaped = [...this.#shaped.values()];
    this.#shaped.clear();
    for (const unit of [...this.#blank.splice(0), ...warm, ...shaped]) await this.#options.destroy(unit);
  }

  async takeBlank(): Promise<Unit | undefined> {
    this.#burst += 1;
    return this.#thawed(await this.#take(this.#blank, (blank) => blank));
  }

  /** Of another than the default shape: there is one where that shape was asked for twice lately. */
  async takeShaped(shape: Shape): Promise<Unit | undefined> {
    this.#shapes.note(shape, Date.now());
    clearTimeout(this.#forgettingShapes);
    this.#forgettingShapes = apart(() => setTimeout(() => this.#refillAfter(0), SHAPE_MEMORY_MS));
    this.#forgettingShapes.unref();
    this.#refillAfter(REFILL_AFTER_MS);
    const unit = this.#shaped.get(shapeKey(shape));
    if (unit === undefined) return undefined;
    this.#shaped.delete(shapeKey(shape));
    return this.#thawed(await this.#take([unit], (blank) => blank));
  }

  async #thawed(unit: Unit | undefined): Promise<Unit | undefined> {
    if (unit === undefined) return undefined;
    try {
      await this.#options.freeze(unit, false);
      return unit;
    } catch (error) {
      await this.#options.destroy(unit);
      throw error;
    }
  }

  /** That of this sandbox id, else any. */
  async takeWarm(sandboxId: string): Promise<WarmUnit | undefined> {
    const own = this.#warm.findIndex(({ identity }) => identity.sandboxId === sandboxId);
    if (own > 0) this.#warm.unshift(...this.#warm.splice(own, 1));
    try {
      return await this.#take(this.#warm, ({ unit }) => unit);
    } finally {
      this.#offer();
    }
  }

  #offer(): void {
    this.#options.offer?.(this.#warm.map(({ identity }) => identity));
  }

  /** While `make` makes a machine for somebody, nothing is made ahead: that would take the CPUs from it. */
  async first<Made>(make: () => Promise<Made>): Promise<Made> {
    this.#making += 1;
    try {
      return await make();
    } finally {
      this.#making -= 1;
    }
  }

  counts(): { blank: number; warm: number; shaped: number } {
    return { blank: this.#blank.length, warm: this.#warm.length, shaped: this.#shaped.size };
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

  /** What was asked for at once is kept ready for a while. */
  #noteBurst(): void {
    const { count } = this.#options;
    const size = Math.min(this.#burst, count * BLANKS_PER_COUNT);
    this.#burst = 0;
    if (size <= count || size < this.#blanksWanted) return;
    this.#blanksWanted = size;
    clearTimeout(this.#forgetting);
    this.#forgetting = apart(() =>
      setTimeout(() => {
        this.#blanksWanted = count;
      }, BURST_MEMORY_MS),
    );
    this.#forgetting.unref();
  }

  /** Those of shapes that nobody asks for any more. */
  async #dropShaped(): Promise<void> {
    const wanted = new Set(this.#shapes.wanted(Date.now()).map(shapeKey));
    for (const [key, unit] of this.#shaped) {
      if (wanted.has(key)) continue;
      this.#shaped.delete(key);
      await this.#options.destroy(unit);
    }
  }

  #missingShape(): Shape | undefined {
    return this.#shapes.wanted(Date.now()).find((shape) => !this.#shaped.has(shapeKey(shape)));
  }

  async #fill(): Promise<void> {
    const { count, makeBlank, freeze, warm, destroy, log } = this.#options;
    this.#noteBurst();
    try {
      await this.#dropShaped();
      while (!this.#closed) {
        const warmMissing = warm !== undefined && this.#warm.length < count;
        const usualMissing = warmMissing || this.#blank.length < this.#blanksWanted;
        const shape = usualMissing ? undefined : this.#missingShape();
        if (!usualMissing && shape === undefined) return;
        if (this.#making > 0) return this.#refillAfter(REFILL_AFTER_MS);
        const unit = await makeBlank(shape);
        try {
          if (shape !== undefined) {
            await freeze(unit, true);
            this.#shaped.set(shapeKey(shape), unit);
            continue;
          }
          if (!warmMissing || this.#blank.length < 1) {
            await freeze(unit, true);
            this.#blank.push(unit);
            continue;
          }
          this.#warm.push(await warm(unit));
          this.#offer();
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
