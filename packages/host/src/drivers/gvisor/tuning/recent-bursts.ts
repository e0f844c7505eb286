// How many of a kind were asked for within seconds, lately: as many are kept ready for a while (ready-units.ts).
// Decides only; owns nothing but what it was told, which a restart forgets.

/** What is asked for within this time is one burst: less than the pool takes to make as many anew. */
export const BURST_MS = 10_000;
/** A burst is remembered whole for so long, by half as long again, and so on. */
export const BURST_MEMORY_MS = 600_000;

export class RecentBursts {
  readonly #least: number;
  readonly #most: number;
  /** When each of the burst was asked for, the latest last. */
  #askedMs: number[] = [];
  #size = 0;
  #sizeMs = 0;

  constructor(least: number, most: number) {
    this.#least = least;
    this.#most = Math.max(least, most);
  }

  /** One was asked for, whether or not it was there. */
  note(nowMs: number): void {
    this.#askedMs = [...this.#askedMs, nowMs].filter((atMs) => nowMs - atMs < BURST_MS).slice(-this.#most);
    if (this.#askedMs.length < this.wanted(nowMs)) return;
    this.#size = this.#askedMs.length;
    this.#sizeMs = nowMs;
  }

  /** How many to keep ready: from the least to the most. */
  wanted(nowMs: number): number {
    const halvings = Math.floor((nowMs - this.#sizeMs) / BURST_MEMORY_MS);
    return Math.max(this.#least, Math.ceil(this.#size / 2 ** halvings));
  }
}
