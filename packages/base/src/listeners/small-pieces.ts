/**
 * Joins the small pieces of a body (chunks, DATA frames) that arrive in one turn of the event loop, and bounds how many
 * of them the process reads in a time, of all clients together. Connections that bring many take turns; others never
 * wait.
 */
import type { Readable } from "node:stream";
import { PieceRate } from "./piece-rate.ts";

/** Small pieces of all clients that are read in a time; a connection may bring some in any turn of the event loop. */
const piecesPerMs = 100;
const freePieces = 64;
/** Smaller pieces are joined. */
const smallBytes = 1_024;
const togetherBytes = 16 * 1_024;
/** Pieces that nobody has read yet. Each takes some hundred bytes more than it has. */
const unreadPieces = 1_024;

const ofAllClients = new PieceRate(piecesPerMs);

export const isSmall = (piece: unknown): piece is Uint8Array =>
  piece instanceof Uint8Array && piece.length < smallBytes;

export class SmallPieces {
  readonly #body: Readable;
  readonly #push: (bytes: Uint8Array) => void;
  readonly #readOn: (hasRoom: boolean) => void;
  readonly #work: PieceRate;
  #joined: Uint8Array | undefined;
  #joinedBytes = 0;
  #ofTurn = 0;
  #unread = 0;
  #isTurnOverSet = false;
  #isHeld = false;

  /**
   * `push`: hands bytes on to the reader of `body`. `readOn`: reads its connection on; `hasRoom`: and the body.
   */
  constructor(
    body: Readable,
    push: (bytes: Uint8Array) => void,
    readOn: (hasRoom: boolean) => void,
    work = ofAllClients,
  ) {
    this.#body = body;
    this.#push = push;
    this.#readOn = readOn;
    this.#work = work;
  }

  /** The connection is not read now; `readOn` is called when it is its turn. */
  get isHeld(): boolean {
    return this.#isHeld;
  }

  get hasRoom(): boolean {
    const { readableLength, readableHighWaterMark } = this.#body;
    return readableLength < readableHighWaterMark && this.#unread < unreadPieces;
  }

  /** False: do not read the connection on until `readOn` is called, or the body is read. */
  add(piece: Uint8Array): boolean {
    this.#join(piece);
    this.#ofTurn += 1;
    this.#work.spend(1);
    if (!this.#isTurnOverSet) setImmediate(this.#turnOver);
    this.#isTurnOverSet = true;
    this.#isHeld ||= this.#ofTurn >= freePieces && !this.#work.hasLeft;
    return !this.#isHeld && this.hasRoom;
  }

  #join(piece: Uint8Array): void {
    if (this.#joinedBytes + piece.length > togetherBytes) this.flush();
    if (this.#joined === undefined) this.#joined = piece;
    else {
      if (this.#joined.length < togetherBytes) {
        const store = Buffer.allocUnsafe(togetherBytes);
        store.set(this.#joined);
        this.#joined = store;
      }
      this.#joined.set(piece, this.#joinedBytes);
    }
    this.#joinedBytes += piece.length;
  }

  /** Hands on what was joined. */
  flush(): void {
    const [joined, length] = [this.#joined, this.#joinedBytes];
    this.#joined = undefined;
    this.#joinedBytes = 0;
    if (joined === undefined || this.#body.destroyed) return;
    this.#unread = this.#body.readableLength === 0 ? 1 : this.#unread + 1;
    // A few bytes do not keep a whole store.
    this.#push(
      length * 2 < joined.length ? Buffer.from(joined.subarray(0, length)) : joined.subarray(0, length),
    );
  }

  readonly #turnOver = (): void => {
    this.#isTurnOverSet = false;
    this.#ofTurn = 0;
    this.flush();
    if (!this.#isHeld || this.#work.mayBegin(this.#release)) this.#release();
  };

  readonly #release = (): void => {
    this.#isHeld = false;
    this.#readOn(!this.#body.destroyed && this.hasRoom);
  };
}
