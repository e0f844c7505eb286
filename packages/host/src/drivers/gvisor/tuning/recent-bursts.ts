/**
 * Remembers how many units of a kind were requested at once lately; as many are kept ready for a while (ready-units.ts).
 * Only decides. Owns the times of requests, in memory; a restart forgets them.
 */

/** Requests within this time are one burst. The pool takes longer to make as many again. */
export const burstMs = 10_000;
/** The size of a burst is halved each time this long has passed. */
export const burstMemoryMs = 600_000;

export class RecentBursts {
  readonly #least: number;
  readonly #most: number;
  /** Times of the requests of the burst, the latest last. */
  #askedMs: number[] = [];
  #size = 0;
  #sizeMs = 0;

  constructor(least: number, most: number) {
    this.#least = least;
    this.#most = Math.max(least, most);
  }

  /** Notes one request, whether or not a unit was ready. */
  note(nowMs: number): void {
    this.#askedMs = [...this.#askedMs, nowMs].filter((atMs) => nowMs - atMs < burstMs).slice(-this.#most);
    if (this.#askedMs.length < this.wanted(nowMs)) return;
    this.#size = this.#askedMs.length;
    this.#sizeMs = nowMs;
  }

  /** How many to keep ready: between `least` and `most`. */
  wanted(nowMs: number): number {
    const halvings = Math.floor((nowMs - this.#sizeMs) / burstMemoryMs);
    return Math.max(this.#least, Math.ceil(this.#size / 2 ** halvings));
  }
}
