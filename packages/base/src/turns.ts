import type { Clock } from "./clock.ts";

/** Lets at most `most` callers in at once; the others wait in the order in which they came. In memory only. */
export class Turns {
  readonly #most: number;
  readonly #waiting: (() => void)[] = [];
  #inside = 0;

  constructor(most: number) {
    this.#most = most;
  }

  /** Resolves when it is the caller's turn, with the function that ends it; to be called once. */
  async enter(): Promise<() => void> {
    if (this.#inside < this.#most) this.#inside += 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return () => {
      const next = this.#waiting.shift();
      if (next === undefined) this.#inside -= 1;
      else next();
    };
  }

  /** Does `body` in a turn; one that takes longer than `patienceMs` gives its turn to the next, and goes on. */
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
