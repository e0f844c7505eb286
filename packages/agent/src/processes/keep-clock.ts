/**
 * Calls back after a time in which the machine ran: what it slept, suspended or frozen, does not count, so that a sandbox that is
 * resumed after a night still knows what ended the evening before. One timer for all, and none while nothing waits.
 */
const stepMs = 10_000;

export class KeepClock {
  readonly #due = new Set<{ atMs: number; call: () => void }>();
  /** Time that the machine ran, as far as it was looked at. */
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
