const firstDelayMs = 100;
const delayMsMax = 30_000;
/** A service that ran this long has recovered: its next restart is fast again. */
const stableMs = 10_000;

/** How long to wait before the next automatic restart: 100 ms, doubled each time up to 30 s. */
export class Backoff {
  #failures = 0;

  next(ranMs: number): number {
    if (ranMs >= stableMs) this.#failures = 0;
    const delayMs = Math.min(delayMsMax, firstDelayMs * 2 ** this.#failures);
    this.#failures = Math.min(this.#failures + 1, 20);
    return delayMs;
  }
}
