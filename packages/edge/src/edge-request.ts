import { IncomingMessage } from "node:http";

/** Pieces of a body (chunks, however small) that are read from one connection in a turn of the event loop. */
const piecesPerTurn = 1_024;
/** Smaller pieces of a turn are handed on together. */
const smallBytes = 1_024;
const togetherBytes = 16 * 1_024;

/**
 * An HTTP/1.1 request whose small pieces of a turn of the event loop arrive as one. Once a turn brought many of them,
 * its connection is read on in the next turn.
 */
export class EdgeRequest extends IncomingMessage {
  #small: Uint8Array | undefined;
  #smallBytes = 0;
  #pieces = 0;
  #isNextTurnSet = false;

  /** False: node does not read the connection until _read() is called. */
  override push(piece: unknown, encoding?: BufferEncoding): boolean {
    if (!(piece instanceof Uint8Array) || piece.length >= smallBytes) {
      this.#give();
      return super.push(piece, encoding);
    }
    this.#add(piece);
    this.#pieces += 1;
    if (!this.#isNextTurnSet) setImmediate(this.#nextTurn);
    this.#isNextTurnSet = true;
    return this.#pieces < piecesPerTurn && this.#hasRoom;
  }

  #add(piece: Uint8Array): void {
    if (this.#smallBytes + piece.length > togetherBytes) this.#give();
    if (this.#small === undefined) this.#small = piece;
    else {
      if (this.#small.length < togetherBytes) {
        const store = Buffer.allocUnsafe(togetherBytes);
        store.set(this.#small);
        this.#small = store;
      }
      this.#small.set(piece, this.#smallBytes);
    }
    this.#smallBytes += piece.length;
  }

  get #hasRoom(): boolean {
    return this.readableLength < this.readableHighWaterMark;
  }

  override _read(size: number): void {
    if (this.#pieces < piecesPerTurn) super._read(size);
  }

  #give(): void {
    const small = this.#small?.subarray(0, this.#smallBytes);
    this.#small = undefined;
    this.#smallBytes = 0;
    if (small !== undefined && !this.destroyed) super.push(small);
  }

  readonly #nextTurn = (): void => {
    this.#isNextTurnSet = false;
    this.#pieces = 0;
    this.#give();
    if (!this.complete && this.#hasRoom) super._read(0);
  };
}
