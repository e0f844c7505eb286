import type { Clock } from "./clock.ts";

/** Lets at most `most` callers in at once; the others wait in the order of their calls. In memory only. */
export class Turns {
  readonly #most: number;
  readonly #waiting: (() => void)[] = [];
  #inside = 0;

  constructor(most: number) {
    this.#most = most;
  }

  /** Resolves when it is the caller's turn, with a function that ends the turn; call it once. */
  async enter(): Promise<() => void> {
    if (this.#inside < this.#most) this.#inside += 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return () => {
      const next = this.#waiting.shift();
      if (next === undefined) this.#inside -= 1;
      else next();
    };
  }

  /**
   * Runs `body` in a turn. If it takes longer than `patienceMs`, the next caller gets the turn while `body` goes on.
   */
  async patiently(clock: Clock, patienceMs: number, body: () => Promise<void>): Promise<void> {
    const leave = await this.enter();
    const ended = new AbortController();
    const left = clock.sleep(patienceMs, ended.signal).then(leave, leave);
    try {
      await body();
    } finally {
      ended.abort();
      await left;
    }
  }
}
