/**
 * Doze: the host freezes a running machine while nothing happens in it, because an idle sentry costs CPU. From outside, the
 * only difference is that the first request takes a few milliseconds longer.
 *
 *   awake ──announce (doze-watch.ts: it is quiet)──▶ announced ──freeze (it is quiet still, and nobody holds it)──▶ dozing
 *     ▲                                                 │                                                          │
 *     └──────────────── keepAwake: called before anything is sent to its agent ───────────────────────────────────┘
 *
 * Whoever sends to an agent holds the machine awake until the agent has answered: the host's own calls (agents.ts), the relay for
 * edges on other computers, and the edge in this process. So no request is sent to a machine that stays frozen.
 *
 * In memory only: after a restart of the service every machine that it adopts is thawed (recovery.ts).
 */
import { SerialQueue } from "@cloche/base";
import type { ActivityResponseJson } from "@cloche/protocol/guest";

export type Activity = Required<ActivityResponseJson>;

export interface DozeParts {
  freeze(id: string, frozen: boolean): Promise<void>;
}

/** Keeps a machine awake until `release` is called, which is repeatable. */
export interface KeptAwake {
  /** Resolves when it is awake; undefined: it is. If it throws, the machine may still be frozen. */
  awake: Promise<void> | undefined;
  release(): void;
}

interface Nap {
  /** The agent's last answer. */
  activity: Activity;
  isFrozen: boolean;
}

export class Doze {
  readonly #parts: DozeParts;
  readonly #naps = new Map<string, Nap>();
  readonly #holds = new Map<string, number>();
  /** Freezes and thaws of one machine, one at a time and in order. */
  readonly #moves = new SerialQueue();

  constructor(parts: DozeParts) {
    this.#parts = parts;
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
  reportOf(id: string): Activity | undefined {
    return this.#naps.get(id)?.activity;
  }

  isAnnounced(id: string): boolean {
    return this.#naps.has(id);
  }

  /** Announces that the machine may doze, unless it is held. */
  announce(id: string, activity: Activity): void {
    if (this.#naps.has(id) || this.#holds.has(id)) return;
    this.#naps.set(id, { activity, isFrozen: false });
  }

  /**
   * Freezes an announced machine if `isQuiet` answers true: nothing has happened since the agent's answer `then`. Otherwise,
   * and when `isQuiet` throws, the machine is awake again.
   */
  async freeze(id: string, isQuiet: (then: Activity) => Promise<boolean>): Promise<void> {
    const nap = this.#naps.get(id);
    if (nap === undefined || nap.isFrozen) return;
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
      if (this.#naps.get(id) === nap) this.#naps.delete(id);
    });
  }

  /** Rouses the machine and keeps it awake. */
  keepAwake(id: string): KeptAwake {
    this.#holds.set(id, (this.#holds.get(id) ?? 0) + 1);
    let isHeld = true;
    return {
      awake: this.#naps.has(id) ? this.rouse(id) : undefined,
      release: () => {
        if (!isHeld) return;
        isHeld = false;
        const left = (this.#holds.get(id) ?? 1) - 1;
        if (left === 0) this.#holds.delete(id);
        else this.#holds.set(id, left);
      },
    };
  }

  /** Resolves when the machine is awake, which it stays until the returned function is called. */
  async hold(id: string): Promise<() => void> {
    const { awake, release } = this.keepAwake(id);
    try {
      await awake;
    } catch (error) {
      release();
      throw error;
    }
    return release;
  }

  /** Call when the machine's processes are gone: it no longer dozes. */
  forget(id: string): void {
    this.#naps.delete(id);
  }
}
