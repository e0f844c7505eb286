/**
 * Calls back after a time in which the machine ran. Time suspended or frozen does not count, so that a sandbox resumed the next morning
 * still lists processes that ended in the evening. One timer for all callers; no timer while none waits.
 */
const stepMs = 10_000;

export class KeepClock {
  readonly #due = new Set<{ atMs: number; call: () => void }>();
  /** Running time of the machine, up to the last tick. */
  #ranMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #armedAtMs = 0;
  #armedForMs = 0;

  after(durationMs: number, call: () => void): void {
    this.#advance();
    this.#due.add({ atMs: this.#ranMs + durationMs, call });
    this.#arm();
  }

  #advance(): void {
    if (this.#timer === undefined) return;
    const passedMs = performance.now() - this.#armedAtMs;
    this.#ranMs += Math.min(Math.max(passedMs, 0), 2 * this.#armedForMs + 1_000);
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #arm(): void {
    let next = Infinity;
    for (const { atMs } of this.#due) next = Math.min(next, atMs);
    if (next === Infinity) return;
    this.#armedForMs = Math.max(0, Math.min(stepMs, next - this.#ranMs));
    this.#armedAtMs = performance.now();
    this.#timer = setTimeout(() => this.#fire(), this.#armedForMs);
    this.#timer.unref();
  }

  #fire(): void {
    this.#advance();
    for (const one of this.#due) {
      if (one.atMs > this.#ranMs) continue;
      this.#due.delete(one);
      one.call();
    }
    if (this.#timer === undefined) this.#arm();
  }
}
