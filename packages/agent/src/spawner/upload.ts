import type { GuestUpload } from "./file-types.ts";
import type { GuestEntry } from "./file-types.ts";
import { type OwnFile, ownChunkBytes, ownFromBytes } from "./own-files.ts";

/** Bytes in one frame to the file server, and the number of frames under way at once. */
const frameBytes = 262_144;
const framesOnTheWay = 4;
/** Direct writes under way at once: one is written while the next is gathered. */
const writesOnTheWay = 2;

export interface UploadCalls {
  /** Writes bytes at that offset; frames may be written in any order. */
  data(offset: number, pieces: readonly Buffer[], bytes: number): Promise<unknown>;
  /** A large file, opened by the agent itself; undefined: use `data`. */
  own(): Promise<OwnFile | undefined>;
  commit(): Promise<GuestEntry>;
  abandon(): Promise<unknown>;
}

/** Gathers data into frames, or into direct writes once the file is large, with a few of them under way at once. */
export class Upload implements GuestUpload {
  readonly #calls: UploadCalls;
  readonly #onTheWay = new Set<Promise<void>>();
  #own: Promise<OwnFile | undefined> | undefined;
  #file: OwnFile | undefined;
  #gathered: Buffer[] = [];
  #gatheredBytes = 0;
  #offset = 0;
  #failure: Error | undefined;
  #over = false;

  constructor(calls: UploadCalls) {
    this.#calls = calls;
  }

  async write(pieces: readonly Buffer[]): Promise<void> {
    for (const piece of pieces) {
      this.#gathered.push(piece);
      this.#gatheredBytes += piece.length;
      if (this.#gatheredBytes >= (this.#file ? ownChunkBytes : frameBytes)) this.#flush();
    }
    if (this.#own === undefined && this.#offset >= ownFromBytes) {
      this.#own = this.#calls.own();
      this.#file = await this.#own;
    }
    const atOnce = this.#file ? writesOnTheWay : framesOnTheWay;
    while (this.#onTheWay.size >= atOnce && this.#failure === undefined) await Promise.race(this.#onTheWay);
    if (this.#failure) throw this.#failure;
  }

  async commit(): Promise<GuestEntry> {
    this.#flush();
    await this.#settled();
    if (this.#failure) throw this.#failure;
    this.#over = true;
    return this.#calls.commit();
  }

  async abandon(): Promise<void> {
    if (this.#over) return;
    this.#over = true;
    await this.#settled();
    await this.#calls.abandon();
  }

  async #settled(): Promise<void> {
    while (this.#onTheWay.size > 0) await Promise.race(this.#onTheWay);
    await (await this.#own)?.close();
  }

  #flush(): void {
    if (this.#gatheredBytes === 0) return;
    const [pieces, bytes] = [this.#gathered, this.#gatheredBytes];
    this.#gathered = [];
    this.#gatheredBytes = 0;
    const done = this.#send(this.#offset, pieces, bytes).finally(() => this.#onTheWay.delete(done));
    this.#offset += bytes;
    this.#onTheWay.add(done);
  }

  async #send(offset: number, pieces: readonly Buffer[], bytes: number): Promise<void> {
    try {
      await (this.#file?.write(pieces, bytes, offset) ?? this.#calls.data(offset, pieces, bytes));
    } catch (error) {
      this.#failure ??= error as Error;
    }
  }
}
