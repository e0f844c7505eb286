/**
 * Calls back after each turn of the event loop in which this process worked for long, and never wakes the process: an
 * immediate without a reference runs at the end of a turn that something else began.
 */
import { performance } from "node:perf_hooks";

export class LongTurns {
  readonly #ms: number;
  readonly #after: () => void;
  #isOn = false;
  #endedMs = 0;
  #idleMs = 0;

  constructor(ms: number, after: () => void) {
    this.#ms = ms;
    this.#after = after;
  }

  begin(): void {
    if (this.#isOn) return;
    this.#isOn = true;
    this.#begin();
  }

  end(): void {
    this.#isOn = false;
  }

  #begin(): void {
    this.#endedMs = performance.now();
    this.#idleMs = performance.nodeTiming.idleTime;
    setImmediate(this.#turn).unref();
  }

  readonly #turn = (): void => {
    if (!this.#isOn) return;
    const workedMs = performance.now() - this.#endedMs - (performance.nodeTiming.idleTime - this.#idleMs);
    if (workedMs >= this.#ms) this.#after();
    if (this.#isOn) this.#begin();
  };
}
