/** The beginning and the end of a stream of any length, in bounded memory. */
export interface WindowText {
  text: string;
  /** Bytes of the whole stream. */
  bytes: number;
  truncated: boolean;
}

/**
 * Keeps the beginning and the end of a stream, each half of `limitBytes`. Both ends of a command's output matter: how it began and how it
 * failed.
 */
export class OutputWindow {
  readonly #headBytes: number;
  readonly #tailBytes: number;
  readonly #head: Uint8Array[] = [];
  #tail: Uint8Array[] = [];
  #headSize = 0;
  #tailSize = 0;
  #bytes = 0;

  constructor(limitBytes: number) {
    this.#headBytes = Math.floor(limitBytes / 2);
    this.#tailBytes = limitBytes - this.#headBytes;
  }

  add(piece: Uint8Array): void {
    this.#bytes += piece.length;
    const room = this.#headBytes - this.#headSize;
    const first = piece.subarray(0, room);
    if (first.length > 0) this.#head.push(first.slice());
    this.#headSize += first.length;
    const rest = piece.subarray(first.length);
    if (rest.length === 0) return;
    this.#tail.push(rest.slice(-this.#tailBytes));
    this.#tailSize += Math.min(rest.length, this.#tailBytes);
    // Up to twice the size is kept before it is cut, so that not every piece is copied.
    if (this.#tailSize > 2 * this.#tailBytes) this.#cutTail();
  }

  /** As UTF-8; invalid bytes, and characters that are cut through, become U+FFFD. */
  read(): WindowText {
    this.#cutTail();
    const left = this.#bytes - this.#headSize - this.#tailSize;
    const head = Buffer.concat(this.#head);
    const tail = Buffer.concat(this.#tail);
    if (left === 0)
      return { text: Buffer.concat([head, tail]).toString("utf8"), bytes: this.#bytes, truncated: false };
    const note = `\n[… ${left} bytes in the middle are left out …]\n`;
    return {
      text: `${head.toString("utf8")}${note}${tail.toString("utf8")}`,
      bytes: this.#bytes,
      truncated: true,
    };
  }

  #cutTail(): void {
    if (this.#tailSize <= this.#tailBytes) return;
    const whole = Buffer.concat(this.#tail);
    this.#tail = [Buffer.from(whole.subarray(-this.#tailBytes))];
    this.#tailSize = this.#tailBytes;
  }
}
