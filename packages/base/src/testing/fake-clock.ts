/** A clock whose time moves only when a test says so. */
import type { Clock } from "../clock.ts";

interface Sleeper {
  atMs: number;
  wake: () => void;
}

export class FakeClock implements Clock {
  #nowMs: number;
  #sleepers: Sleeper[] = [];

  constructor(startMs = Date.UTC(2026, 0, 1)) {
    this.#nowMs = startMs;
  }

  nowMs(): number {
    return this.#nowMs;
  }

  monotonicMs(): number {
    return this.#nowMs;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const sleeper: Sleeper = {
        atMs: this.#nowMs + ms,
        wake: () => {
          signal?.removeEventListener("abort", onAbort);
          resolve();
        },
      };
      const onAbort = (): void => {
        this.#sleepers = this.#sleepers.filter((one) => one !== sleeper);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#sleepers.push(sleeper);
    });
  }

  /** Time jumps, as after the computer was asleep: every sleeper that is due wakes once. */
  async jump(ms: number): Promise<void> {
    await quiet();
    this.#nowMs += ms;
    await this.advance(0);
  }

  /** Moves time on, wakes sleepers in order, and lets each act before the next. */
  async advance(ms: number): Promise<void> {
    const untilMs = this.#nowMs + ms;
    for (;;) {
      await quiet();
      const next = this.#sleepers.toSorted((a, b) => a.atMs - b.atMs)[0];
      if (next === undefined || next.atMs > untilMs) break;
      this.#sleepers = this.#sleepers.filter((one) => one !== next);
      this.#nowMs = Math.max(this.#nowMs, next.atMs);
      next.wake();
    }
    this.#nowMs = untilMs;
    await quiet();
  }
}

/** Lets all work run that needs no time to pass: databases and routers in memory need only turns of the event loop. */
export async function quiet(turns = 40): Promise<void> {
  for (let turn = 0; turn < turns; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}
