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
}
