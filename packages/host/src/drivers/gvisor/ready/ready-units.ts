/**
 * Units kept ready, so that a new machine needs neither the start of a sentry nor the boot of an agent.
 *
 *   blank: `runsc create` is done, and the cgroup is frozen. A snapshot (fork, resume) or the template is restored into it later.
 *          One more blank is kept for each shape that is requested repeatedly (recent-shapes.ts): a _shaped_ unit.
 *   warm:  a blank into which the template was restored, on its own fresh disk, with the users' namespaces and a rehearsed request.
 *          It is assigned to an identity that no sandbox has yet, and its cgroup is frozen (systrap uses 2 % of a core when
 *          idle). A new machine with that identity only thaws it; a machine with another identity is assigned again.
 *
 * After a burst as many of each kind are kept as it requested (recent-bursts.ts), if the host has the memory (memory-headroom.ts).
 *
 * Owns its units; no other part knows them. After a crash of the service they belong to no machine and are swept.
 */
import { allDone, apart, eachLimited, type Log } from "@cloche/base";
import type { ReadyIdentity } from "../../driver.ts";
import type { MemoryHeadroom } from "./memory-headroom.ts";
import { RecentBursts } from "../tuning/recent-bursts.ts";
import { RecentShapes, type Shape, shapeKey } from "../tuning/recent-shapes.ts";
import type { Unit } from "../unit.ts";

export interface WarmUnit {
  unit: Unit;
  identity: ReadyIdentity;
}

export interface ReadyUnitsOptions {
  /** The fewest of each kind. */
  count: number;
  /** The most of each kind, if as many were requested lately. Less than `count` means `count`. */
  most: number;
  /** Most units made together, where more than `count` of a kind are wanted; default 1. */
  atOnce?: number;
  /** Called before more than `count` are made, and from time to time while there are more. */
  memoryHeadroom(): MemoryHeadroom;
  /** Makes a blank unit of `shape`, by default of the default shape. */
  makeBlank(shape?: Shape): Promise<Unit>;
  /** Freezes or thaws a blank unit. */
  freeze(blank: Unit, frozen: boolean): Promise<void>;
  /** Turns a blank unit into a warm one. Absent: no warm units are kept. */
  warm?: (blank: Unit) => Promise<WarmUnit>;
  destroy(unit: Unit): Promise<void>;
  /** Called after every change with the identities of all warm units. */
  offer?: (identities: ReadyIdentity[]) => void;
  log: Log;
}

/** Refilling waits this long after a unit was taken, because the machine made from it still needs the CPUs. */
const refillAfterMs = 400;
/** While more is ready than the least: what nobody asks for any more, or what there is no memory for, is given back. */
const checkAgainMs = 30_000;
/** Making failed: the next try comes later, or with the next unit taken. */
const retryAfterMs = 30_000;

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
  /** The timer refills soon; it is not the one that only looks again. */
  #isRefillNear = false;
  #closed = false;
  /** Requested machines that are being made now. */
  #creating = 0;

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

  /** `instead`: a warm unit was asked for first and is missing; only that counts for how many to keep. */
  async takeBlank(instead = false): Promise<Unit | undefined> {
    if (!instead) this.#bursts.blank.note(Date.now());
    return this.#thawed(await this.#take(this.#blank, (blank) => blank));
  }

  /** A blank unit of another than the default shape; kept if that shape was requested twice lately. */
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

  /** The warm unit with this sandbox id; if there is none, any. */
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

  /** While `make` makes a requested machine, no unit is made ahead, which would take CPU from it. */
  async first<Made>(make: () => Promise<Made>): Promise<Made> {
    this.#creating += 1;
    try {
      return await make();
    } finally {
      this.#creating -= 1;
    }
  }

  counts(): { blank: number; warm: number; shaped: number } {
    return { blank: this.#blank.length, warm: this.#warm.length, shaped: this.#shaped.size };
  }

  /** How many of each kind to keep, besides one for each shape. */
  wanted(): { blank: number; warm: number } {
    const { count, warm, memoryHeadroom } = this.#options;
    const left = memoryHeadroom();
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

  /** Resolves when all wanted units are there; for tests and benchmarks. */
  async settled(): Promise<void> {
    while (this.#filling !== undefined || this.#missing() !== undefined) {
      await (this.#filling ?? new Promise((resolve) => setTimeout(resolve, refillAfterMs)));
    }
  }

  /** Takes the first unit that lives; destroys units that died while they waited. */
  async #take<Ready>(from: Ready[], unitOf: (ready: Ready) => Unit): Promise<Ready | undefined> {
    for (let ready = from.shift(); ready !== undefined; ready = from.shift()) {
      this.#refillSoon();
      if (await unitOf(ready).isAlive()) return ready;
      await this.#options.destroy(unitOf(ready));
    }
    return undefined;
  }

  /** Refills once no unit was taken for a while. With more than half gone, later takes no longer postpone it. */
  #refillSoon(): void {
    if (this.#isRefillNear && this.#isHalfGone) return;
    this.#refillAfter(refillAfterMs);
  }

  get #isHalfGone(): boolean {
    const wanted = this.wanted();
    return this.#warm.length < wanted.warm / 2 || this.#blank.length < wanted.blank / 2;
  }

  #refillAfter(delayMs: number): void {
    clearTimeout(this.#timer);
    if (this.#closed || this.#options.count === 0) return;
    this.#isRefillNear = delayMs <= refillAfterMs;
    // Outside the trace of the request that took a unit.
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

  /** Destroys units beyond the wanted number. */
  async #dropSurplus(): Promise<void> {
    const wanted = this.wanted();
    const blanks = this.#blank.splice(wanted.blank);
    const warm = this.#warm.splice(wanted.warm);
    if (warm.length > 0) this.#offer();
    for (const unit of [...blanks, ...warm.map(({ unit }) => unit)]) await this.#options.destroy(unit);
  }

  /** Destroys units of shapes that are no longer requested. */
  async #dropShaped(): Promise<void> {
    const wanted = new Set(this.#shapes.wanted(Date.now()).map(shapeKey));
    for (const [key, unit] of this.#shaped) {
      if (wanted.has(key)) continue;
      this.#shaped.delete(key);
      await this.#options.destroy(unit);
    }
  }

  /** What to make next: one blank first, then the fewest of each kind, then the rest, and shapes last. */
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

  /** How many to make together. The fewest of each kind are made one by one, the rest is for the next burst. */
  #togetherOf(kind: "blank" | "warm" | Shape): number {
    const { count, atOnce = 1 } = this.#options;
    if (typeof kind === "object") return 1;
    const have = { blank: this.#blank, warm: this.#warm }[kind].length;
    return have < count ? 1 : Math.min(this.wanted()[kind] - have, atOnce);
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
        if (this.#creating > 0) return this.#refillAfter(refillAfterMs);
        const kind = next;
        await allDone(Array.from({ length: this.#togetherOf(kind) }, () => this.#make(kind)));
      }
      if (this.#isAboveLeast) this.#refillAfter(checkAgainMs);
    } catch (error) {
      log.warn({ err: error }, "no machine could be made ahead");
      this.#refillAfter(retryAfterMs);
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
