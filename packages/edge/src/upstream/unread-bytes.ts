const leastBytes = 256;

/** The beginning of something that is not complete yet. Each byte is copied a bounded number of times. */
export class UnreadBytes {
  #store: Buffer = Buffer.alloc(0);
  #length = 0;

  /** What was kept, followed by `chunk`. */
  with(chunk: Buffer): Buffer {
    if (this.#length === 0) return chunk;
    const length = this.#length + chunk.length;
    if (length > this.#store.length) this.#move(this.#store.subarray(0, this.#length), length);
    chunk.copy(this.#store, this.#length);
    this.#length = 0;
    return this.#store.subarray(0, length);
  }

  /** Keeps the end of what with() returned. */
  keep(bytes: Buffer): void {
    const { buffer, byteOffset } = this.#store;
    // Parts of a store may have been handed out, so only one of which nothing was read is written to again.
    if (bytes.buffer !== buffer || bytes.byteOffset !== byteOffset) this.#move(bytes, bytes.length);
    this.#length = bytes.length;
  }

  #move(bytes: Buffer, length: number): void {
    this.#store = Buffer.allocUnsafe(Math.max(leastBytes, 2 * length));
    bytes.copy(this.#store);
  }
}
