// Running machines that doze: frozen by the host while nothing happens in them, for an idle sentry costs CPU. Nobody can
// tell from outside but by the few milliseconds that the first request takes longer.
//
//   awake ──announce (doze-watch.ts: it is quiet)──▶ announced ──freeze (every edge knows, and it is quiet still)──▶ dozing
//     ▲                                                 │                                                           │
//     └──────────────── rouse: whoever is about to ask its agent, before it does ──────────────────────────────────┘
//
// The number of a machine is odd from the announcement on and even when it is awake. An edge that knows of an odd one sends
// nothing before it has roused the machine, and one that is sending when it hears of it rouses it at once; a machine is
// frozen only after every edge has heard. So nothing is ever sent to a machine that stays frozen.
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
  /** What the agent said last. */
  activity: Activity;
  isFrozen: boolean;
}

export class Doze {
  readonly #parts: DozeParts;
  readonly #naps = new Map<string, Nap>();
  readonly #counts = new Map<string, number>();
  readonly #holds = new Map<string, number>();
  /** The freezer is moved by one at a time, in the order they came. */
  readonly #moves = new SerialQueue();

  constructor(parts: DozeParts) {
    this.#parts = parts;
  }

  /** Odd: it dozes or is about to. */
  count(id: string): number {
    return this.#counts.get(id) ?? 0;
  }

  get dozing(): number {
    return [...this.#naps.values()].filter(({ isFrozen }) => isFrozen).length;
  }

  /** What its agent said before it was frozen; undefined: it is awake. */
  activityOf(id: string): Activity | undefined {
    const nap = this.#naps.get(id);
    return nap?.isFrozen === true ? nap.activity : undefined;
  }

  /** The same of one that is about to doze, too. */
  saidOf(id: string): Activity | undefined {
    return this.#naps.get(id)?.activity;
  }

  isAnnounced(id: string): boolean {
    return this.#naps.has(id);
  }

  /** Says that it wants to doze, if nobody holds it. */
  announce(id: string, activity: Activity): void {
    if (this.#naps.has(id) || this.#holds.has(id)) return;
    this.#naps.set(id, { activity, isFrozen: false });
    this.#turn(id);
  }

  /**
   * Freezes a machine that was announced as `count`, where `isQuiet`, asked with the agent's words of then, says that
   * nothing has happened since. Otherwise, and when that is not known, it is awake again.
   */
  async freeze(id: string, count: number, isQuiet: (then: Activity) => Promise<boolean>): Promise<void> {
    const nap = this.#naps.get(id);
    if (nap === undefined || this.count(id) !== count || nap.isFrozen) return;
    let quiet = false;
    try {
      quiet = await isQuiet(nap.activity);
      await this.#moves.run(id, async () => {
        // Roused meanwhile; or held, by one whose turn comes after ours.
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

  /** Answers when it is awake. When it throws, the machine may still be frozen and the next one tries again. */
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

  /** Rouses it and keeps it awake until the answer is called. */
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

  /** Its processes are gone. */
  forget(id: string): void {
    if (this.#naps.delete(id)) this.#turn(id);
  }

  /** The machine is no more: its number goes too. */
  drop(id: string): void {
    this.#naps.delete(id);
    this.#counts.delete(id);
  }

  #turn(id: string): void {
    this.#counts.set(id, this.count(id) + 1);
    this.#parts.changed(id);
  }
}
