/**
 * Bounds how many small pieces are read in a time (chunks of one byte, 1xx answers, WebSocket frames), which cost more
 * than their bytes. One read may bring thousands; then the others wait, first come first served, until the time of these
 * is over, so that other requests are served in between.
 */
export class PieceRate {
  readonly #perMs: number;
  readonly #waiting: (() => void)[] = [];
  #left: number;
  #filledAtMs = performance.now();
  #timer: NodeJS.Timeout | undefined;

  constructor(perMs: number) {
    this.#perMs = perMs;
    this.#left = perMs;
  }

  get hasLeft(): boolean {
    if (this.#left <= 0 && this.#timer === undefined) this.#fill();
    return this.#left > 0;
  }

  /** True: pieces may be read now. False: `later` is called when they may be, and reads them. */
  mayBegin(later: () => void): boolean {
    if (this.hasLeft) return true;
    this.#waiting.push(later);
    this.#timer ??= setTimeout(this.#begin, Math.ceil((1 - this.#left) / this.#perMs));
    return false;
  }

  /** Counts pieces that were read; may be more than there was time for. */
  spend(pieces: number): void {
    this.#left -= pieces;
  }

  #fill(): void {
    const nowMs = performance.now();
    this.#left = Math.min(this.#perMs, this.#left + (nowMs - this.#filledAtMs) * this.#perMs);
    this.#filledAtMs = nowMs;
  }

  readonly #begin = (): void => {
    this.#timer = undefined;
    while (this.#waiting.length > 0) {
      if (!this.hasLeft) {
        this.#timer = setTimeout(this.#begin, Math.ceil((1 - this.#left) / this.#perMs));
        return;
      }
      this.#waiting.shift()?.();
    }
  };
}
