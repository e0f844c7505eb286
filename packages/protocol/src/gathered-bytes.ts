/** Pieces from this size on are kept as they came; smaller ones are copied together. */
const blockBytes = 4_096;

/**
 * Bytes that arrive in pieces of any size, joined once when they are wanted. Work is linear in the bytes, and memory at
 * most about twice the bytes: a peer that sends single bytes would otherwise cost an object and a copy of the whole for
 * each. The caller bounds `length`.
 */
export class GatheredBytes {
  #pieces: Uint8Array<ArrayBuffer>[] = [];
  /** The last piece, while it has room for small ones; `#used` of its bytes are filled. */
  #block: Uint8Array<ArrayBuffer> | undefined;
  #used = 0;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** Keeps a large piece without a copy; it must not be changed afterwards. */
  push(piece: Uint8Array): void {
    if (piece.length === 0) return;
    const isFirst = this.#length === 0;
    this.#length += piece.length;
    if (isFirst || piece.length >= blockBytes) {
      this.#endBlock();
      this.#pieces.push(piece as Uint8Array<ArrayBuffer>);
      return;
    }
    const room = this.#block === undefined ? 0 : blockBytes - this.#used;
    const fits = Math.min(room, piece.length);
    this.#block?.set(piece.subarray(0, fits), this.#used);
    this.#used += fits;
    if (fits === piece.length) return;
    this.#endBlock();
    this.#block = new Uint8Array(blockBytes);
    this.#block.set(piece.subarray(fits));
    this.#used = piece.length - fits;
  }

  /** All bytes in one piece; nothing is kept. */
  take(): Uint8Array<ArrayBuffer> {
    const { length } = this;
    const pieces = this.takePieces();
    const [only] = pieces;
    if (pieces.length === 1 && only !== undefined) return only;
    const whole = new Uint8Array(length);
    let at = 0;
    for (const piece of pieces) {
      whole.set(piece, at);
      at += piece.length;
    }
    return whole;
  }

  /** The bytes without a copy of the whole, in few pieces; nothing is kept. */
  takePieces(): Uint8Array<ArrayBuffer>[] {
    this.#endBlock();
    const pieces = this.#pieces;
    this.#pieces = [];
    this.#length = 0;
    return pieces;
  }

  #endBlock(): void {
    if (this.#block !== undefined) this.#pieces.push(this.#block.subarray(0, this.#used));
    this.#block = undefined;
    this.#used = 0;
  }
}
