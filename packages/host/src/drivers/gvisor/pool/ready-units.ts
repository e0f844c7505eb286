// Units kept ready, so that a machine needs neither a sentry's start nor an agent's boot.
//
//   blank: runsc create is done; a snapshot (fork, resume) or the template is restored into it. Frozen too. One more for each of
//          the shapes that are asked for again and again (recent-shapes.ts): those are _shaped_.
//   warm:  the template is restored into it too, on a fresh disk of its own, the users' namespaces are there, a request was
//          rehearsed, it is assigned to an identity that nobody has yet, and its cgroup is frozen (systrap burns 2 % of a core
//          when idle): a new machine of that identity thaws it and is there; one of another is assigned first.
//
// Of both, after a burst, as many as were asked for in it (recent-bursts.ts), while the host has the memory (spare-memory.ts).
//
// Owns the units in it: nobody else knows them. After a crash of the service they belong to no machine and are swept.
import { apart, eachLimited, type Log } from "@cloche/base";
import type { ReadyIdentity } from "../../driver.ts";
import type { SpareMemory } from "./spare-memory.ts";
import { RecentBursts } from "../tuning/recent-bursts.ts";
import { RecentShapes, type Shape, shapeKey } from "../tuning/recent-shapes.ts";
import type { Unit } from "../unit.ts";

export interface WarmUnit {
  unit: Unit;
  identity: ReadyIdentity;
}

export interface ReadyUnitsOptions {
  /** How many of each kind at least. */
  count: number;
  /** How many of each kind at most, where so many were asked for lately; less than `count` is as much as it. */
  most: number;
  /** Asked before more than `count` are made, and from time to time while there are more. */
  spareMemory(): SpareMemory;
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
/** While more is ready than the least: what nobody asks for any more, or what there is no memory for, is given back. */
const LOOK_AGAIN_MS = 30_000;
/** Making failed: the next try comes later, or with the next unit taken. */
const RETRY_AFTER_MS = 30_000;

export class ReadyUnits {
  readonly #options: ReadyUnitsOptions;
  readonly #blank: Unit[] = [];
  readonly #warm: WarmUnit[] = [];
  /** By the key of the shape. */
  readonly #shaped = new Map<string, Unit>();
  readonly #shapes = new RecentShapes();
  readonly #bursts: { readonly blank: RecentBursts; readonly warm: RecentBursts };
  #filling: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  /** The timer is not one of those that only look again. */
  #isRefillNear = false;
  #closed = false;
  /** Machines that are being made for somebody now. */
  #making = 0;

  constructor(options: ReadyUnitsOptions) {
    this.#options = options;
    const { count, most } = options;
    this.#bursts = { blank: new RecentBursts(count, most), warm: new RecentBursts(count, most) };
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
    this.#offer();
    const shaped = [...this.#shaped.values()];
    this.#shaped.clear();
    await eachLimited([...this.#blank.splice(0), ...warm, ...shaped], (unit) => this.#options.destroy(unit));
  }

  /** `instead` of a warm one that was asked for before, and not there: the next time that one is to be. */
  async takeBlank(instead = false): Promise<Unit | undefined> {
    if (!instead) this.#bursts.blank.note(Date.now());
    return this.#thawed(await this.#take(this.#blank, (blank) => blank));
  }

  /** Of another than the default shape: there is one where that shape was asked for twice lately. */
  async takeShaped(shape: Shape): Promise<Unit | undefined> {
    this.#shapes.note(shape, Date.now());
    this.#refillSoon();
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
    this.#bursts.warm.note(Date.now());
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

  /** How many there are to be, beside one for each shape. */
  wanted(): { blank: number; warm: number } {
    const { count, warm, spareMemory } = this.#options;
    const left = spareMemory();
    const now = Date.now();
    const wantedOf = (bursts: RecentBursts, have: number): number => {
      if (left === "plenty") return bursts.wanted(now);
      return left === "short" ? count : Math.max(count, Math.min(bursts.wanted(now), have));
    };
    return {
      blank: wantedOf(this.#bursts.blank, this.#blank.length),
      warm: warm === undefined ? 0 : wantedOf(this.#bursts.warm, this.#warm.length),
    };
  }

  /** Resolves when all that is wanted is there, or could not be made; for tests and benchmarks. */
  async settled(): Promise<void> {
    while (this.#filling !== undefined || this.#missing() !== undefined) {
      await (this.#filling ?? new Promise((resolve) => setTimeout(resolve, REFILL_AFTER_MS)));
    }
  }

  /** One that died while it waited is skipped. */
  async #take<Ready>(from: Ready[], unitOf: (ready: Ready) => Unit): Promise<Ready | undefined> {
    for (let ready = from.shift(); ready !== undefined; ready = from.shift()) {
      this.#refillSoon();
      if (await unitOf(ready).isAlive()) return ready;
      await this.#options.destroy(unitOf(ready));
    }
    return undefined;
  }

  /** When nobody has taken one for a while; no later than now, where more than half are gone. */
  #refillSoon(): void {
    if (this.#isRefillNear && this.#isHalfGone) return;
    this.#refillAfter(REFILL_AFTER_MS);
  }

  get #isHalfGone(): boolean {
    const wanted = this.wanted();
    return this.#warm.length < wanted.warm / 2 || this.#blank.length < wanted.blank / 2;
  }

  #refillAfter(delayMs: number): void {
    clearTimeout(this.#timer);
    if (this.#closed || this.#options.count === 0) return;
    this.#isRefillNear = delayMs <= REFILL_AFTER_MS;
    // Whoever took a unit has no part in the making of the next.
    this.#timer = apart(() =>
      setTimeout(() => {
        this.#timer = undefined;
        this.#isRefillNear = false;
        this.#filling ??= this.#fill().finally(() => {
          this.#filling = undefined;
        });
      }, delayMs),
    );
    this.#timer.unref();
  }

  /** What is beyond what is wanted. */
  async #dropSurplus(): Promise<void> {
    const wanted = this.wanted();
    const blanks = this.#blank.splice(wanted.blank);
    const warm = this.#warm.splice(wanted.warm);
    if (warm.length > 0) this.#offer();
    for (const unit of [...blanks, ...warm.map(({ unit }) => unit)]) await this.#options.destroy(unit);
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

  /** What is to be made next: the least of both kinds first, a blank to restore the first warm one into, and shapes last. */
  #missing(): "blank" | "warm" | Shape | undefined {
    const { count } = this.#options;
    const wanted = this.wanted();
    const blank = this.#blank.length;
    const warm = this.#warm.length;
    if (blank < 1) return "blank";
    if (warm < Math.min(count, wanted.warm)) return "warm";
    if (blank < count) return "blank";
    if (warm < wanted.warm) return "warm";
    if (blank < wanted.blank) return "blank";
    return this.#shapes.wanted(Date.now()).find((shape) => !this.#shaped.has(shapeKey(shape)));
  }

  get #isAboveLeast(): boolean {
    const { count } = this.#options;
    return this.#blank.length > count || this.#warm.length > count || this.#shaped.size > 0;
  }

  async #fill(): Promise<void> {
    const { log } = this.#options;
    try {
      await this.#dropShaped();
      await this.#dropSurplus();
      for (let next = this.#missing(); next !== undefined && !this.#closed; next = this.#missing()) {
        if (this.#making > 0) return this.#refillAfter(REFILL_AFTER_MS);
        await this.#make(next);
      }
      if (this.#isAboveLeast) this.#refillAfter(LOOK_AGAIN_MS);
    } catch (error) {
      log.warn({ err: error }, "no machine could be made ahead");
      this.#refillAfter(RETRY_AFTER_MS);
    }
  }

  async #make(kind: "blank" | "warm" | Shape): Promise<void> {
    const { makeBlank, freeze, warm, destroy } = this.#options;
    const shape = typeof kind === "object" ? kind : undefined;
    const unit = await makeBlank(shape);
    try {
      if (kind === "warm" && warm !== undefined) {
        this.#warm.push(await warm(unit));
        this.#offer();
        return;
      }
      await freeze(unit, true);
      if (shape === undefined) this.#blank.push(unit);
      else this.#shaped.set(shapeKey(shape), unit);
    } catch (error) {
      await destroy(unit);
      throw error;
    }
  }
}
