/**
 * Bounds how much of the event loop's turn one sandbox's connections take: many small pieces (chunks of one byte, 1xx
 * answers, WebSocket frames) cost more than their bytes. What is left over waits, first come first served, for the next
 * turn, so that requests of other sandboxes are served in between.
 */
export class TurnWork {
  readonly #perTurn: number;
  readonly #waiting: (() => void)[] = [];
  #left: number;
  #isNextTurnSet = false;

  /** `piecesPerTurn`: work that may begin after fewer pieces. */
  constructor(piecesPerTurn: number) {
    this.#perTurn = piecesPerTurn;
    this.#left = piecesPerTurn;
  }

  /** True: work may be done now. False: `later` is called in another turn, and does the work then. */
  mayBegin(later: () => void): boolean {
    if (this.#left > 0) return true;
    this.#waiting.push(later);
    return false;
  }

  spend(pieces: number): void {
    this.#left -= pieces;
    if (this.#left > 0 || this.#isNextTurnSet) return;
    this.#isNextTurnSet = true;
    setImmediate(this.#begin);
  }

  readonly #begin = (): void => {
    this.#isNextTurnSet = false;
    this.#left = this.#perTurn;
    while (this.#left > 0) {
      const later = this.#waiting.shift();
      if (later === undefined) return;
      later();
    }
  };
}
