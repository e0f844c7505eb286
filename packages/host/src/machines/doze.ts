// Doze: the host freezes a running machine while nothing happens in it, because an idle sentry costs CPU. From outside, the
// only difference is that the first request takes a few milliseconds longer.
//
//   awake ──announce (doze-watch.ts: it is quiet)──▶ announced ──freeze (every edge knows, and it is quiet still)──▶ dozing
//     ▲                                                 │                                                           │
//     └──────────────── rouse: called before every call to its agent ──────────────────────────────────────────────┘
//
// The number of a machine is odd from the announcement on and even while it is awake. An edge that knows an odd number rouses
// the machine before it sends. An edge that learns of an odd number while it is sending rouses the machine at once. A machine
// is frozen only after every edge knows. So no request is sent to a machine that stays frozen.
//
// In memory only: after a restart of the service every machine that it adopts is thawed (recovery.ts).
import { SerialQueue } from "@cloche/base";
import type { ActivityResponseJson } from "@cloche/protocol/guest";

export type Activity = Required<ActivityResponseJson>;

export interface DozeParts {
  freeze(id: string, frozen: boolean): Promise<void>;
  /** The machine's number has changed. */
  changed(id: string): void;
}

interface Nap {
  /** The agent's last answer. */
  activity: Activity;
  isFrozen: boolean;
}

export class Doze {
  readonly #parts: DozeParts;
  readonly #naps = new Map<string, Nap>();
  readonly #counts = new Map<string, number>();
  readonly #holds = new Map<string, number>();
  /** Freezes and thaws of one machine, one at a time and in order. */
  readonly #moves = new SerialQueue();

  constructor(parts: DozeParts) {
    this.#parts = parts;
  }

  /** The number of the machine. Odd: it dozes or is about to. */
  count(id: string): number {
    return this.#counts.get(id) ?? 0;
  }

  get dozing(): number {
    return [...this.#naps.values()].filter(({ isFrozen }) => isFrozen).length;
  }

  /** The agent's last answer before the machine was frozen; undefined: it is not frozen. */
  activityOf(id: string): Activity | undefined {
    const nap = this.#naps.get(id);
    return nap?.isFrozen === true ? nap.activity : undefined;
  }

  /** `activityOf`, also for a machine that is announced and not frozen yet. */
  saidOf(id: string): Activity | undefined {
    return this.#naps.get(id)?.activity;
  }

  isAnnounced(id: string): boolean {
    return this.#naps.has(id);
  }

  /** Announces that the machine may doze, unless it is held. */
  announce(id: string, activity: Activity): void {
    if (this.#naps.has(id) || this.#holds.has(id)) return;
    this.#naps.set(id, { activity, isFrozen: false });
    this.#turn(id);
  }

  /**
   * Freezes a machine announced with number `count` if `isQuiet` answers true: nothing has happened since the agent's answer
   * `then`. Otherwise, and when `isQuiet` throws, the machine is awake again.
   */
  async freeze(id: string, count: number, isQuiet: (then: Activity) => Promise<boolean>): Promise<void> {
    const nap = this.#naps.get(id);
    if (nap === undefined || this.count(id) !== count || nap.isFrozen) return;
    let quiet = false;
    try {
      quiet = await isQuiet(nap.activity);
      await this.#moves.run(id, async () => {
        // It was roused meanwhile, or is held by a caller whose rouse waits behind this freeze.
        if (!quiet || this.#naps.get(id) !== nap || this.#holds.has(id)) return;
        nap.isFrozen = true;
        await this.#parts.freeze(id, true);
      });
    } catch (error) {
      quiet = false;
      throw error;
    } finally {
      if (!quiet && this.#naps.get(id) === nap) await this.rouse(id);
    }
  }

  /** Resolves when the machine is awake. If it throws, the machine may still be frozen; the next call tries again. */
  async rouse(id: string): Promise<void> {
    if (!this.#naps.has(id)) return;
    await this.#moves.run(id, async () => {
      const nap = this.#naps.get(id);
      if (nap === undefined) return;
      if (nap.isFrozen) await this.#parts.freeze(id, false);
      if (this.#naps.get(id) !== nap) return;
      this.#naps.delete(id);
      this.#turn(id);
    });
  }

  /** Rouses the machine and keeps it awake until the returned function is called. */
  async hold(id: string): Promise<() => void> {
    this.#holds.set(id, (this.#holds.get(id) ?? 0) + 1);
    const release = (): void => {
      const left = (this.#holds.get(id) ?? 1) - 1;
      if (left === 0) this.#holds.delete(id);
      else this.#holds.set(id, left);
    };
    try {
      await this.rouse(id);
    } catch (error) {
      release();
      throw error;
    }
    return release;
  }

  /** Call when the machine's processes are gone: it no longer dozes. */
  forget(id: string): void {
    if (this.#naps.delete(id)) this.#turn(id);
  }

  /** Call when the machine is destroyed: its number is dropped too. */
  drop(id: string): void {
    this.#naps.delete(id);
    this.#counts.delete(id);
  }

  #turn(id: string): void {
    this.#counts.set(id, this.count(id) + 1);
    this.#parts.changed(id);
  }
}
