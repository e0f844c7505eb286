/** One stream of a command, kept up to a limit; what comes after it is dropped and counted as cut. */
export class CollectedOutput {
  readonly #maxBytes: number;
  readonly #chunks: Buffer[] = [];
  #bytes = 0;
  truncated = false;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  take(chunk: Buffer): void {
    const room = this.#maxBytes - this.#bytes;
    if (chunk.length > room) this.truncated = true;
    if (room <= 0) return;
    const kept = chunk.length > room ? chunk.subarray(0, room) : chunk;
    this.#chunks.push(kept);
    this.#bytes += kept.length;
  }

  /** As text, in which bytes that are no UTF-8 become U+FFFD, or in base64. */
  toString(encoding: "utf8" | "base64"): string {
    const [only] = this.#chunks;
    return (this.#chunks.length === 1 && only ? only : Buffer.concat(this.#chunks, this.#bytes)).toString(
      encoding,
    );
  }
}
