/**
 * Pieces of a stream that arrive in one turn of the event loop, sent together at its end or when there are enough of
 * them: each write costs a system call and a record of TLS, however small it is.
 */
export class Gathered {
  readonly #send: (bytes: Buffer) => void;
  readonly #enoughBytes: number;
  #pieces: Buffer[] = [];
  #bytes = 0;
  #turnOver: NodeJS.Immediate | undefined;

  constructor(enoughBytes: number, send: (bytes: Buffer) => void) {
    this.#enoughBytes = enoughBytes;
    this.#send = send;
  }

  get isEmpty(): boolean {
    return this.#bytes === 0;
  }

  push(piece: Buffer): void {
    this.#pieces.push(piece);
    this.#bytes += piece.length;
    if (this.#bytes >= this.#enoughBytes) this.flush();
    else this.#turnOver ??= setImmediate(this.flush);
  }

  readonly flush = (): void => {
    const bytes = this.take();
    if (bytes !== undefined) this.#send(bytes);
  };

  /** Everything gathered, which is then not sent; undefined: nothing. */
  take(): Buffer | undefined {
    clearImmediate(this.#turnOver);
    this.#turnOver = undefined;
    const pieces = this.#pieces;
    if (pieces.length === 0) return undefined;
    this.#pieces = [];
    this.#bytes = 0;
    return pieces.length === 1 ? pieces[0] : Buffer.concat(pieces);
  }
}
