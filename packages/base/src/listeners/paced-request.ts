import { IncomingMessage } from "node:http";
import { isSmall, SmallPieces } from "./small-pieces.ts";
import { startReading, stopReading } from "./socket-reading.ts";

/** An HTTP/1.1 request whose small chunks are joined and read at a bounded rate. */
export class PacedRequest extends IncomingMessage {
  readonly #pieces = new SmallPieces(
    this,
    (bytes) => void super.push(bytes),
    (hasRoom) => {
      if (hasRoom) this._read(0);
      else if (this.destroyed) startReading(this.socket);
    },
  );

  override push(piece: unknown, encoding?: BufferEncoding): boolean {
    const goesOn = this.#take(piece, encoding);
    if (!goesOn && !this.complete) stopReading(this.socket);
    return goesOn;
  }

  #take(piece: unknown, encoding?: BufferEncoding): boolean {
    if (isSmall(piece)) return this.#pieces.add(piece);
    this.#pieces.flush();
    return super.push(piece, encoding);
  }

  override _read(size: number): void {
    if (this.#pieces.isHeld) return;
    super._read(size);
    if (!this.complete) startReading(this.socket);
  }
}
