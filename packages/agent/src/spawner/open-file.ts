import type { GuestFile } from "./file-types.ts";
import { type OwnFile, ownFromBytes } from "./own-files.ts";
import { PayloadReader, readMaxBytes } from "./wire.ts";

/** Length of a file's version in OPENED. */
const versionBytes = 48;

/** The version of a file on a disk: its identity and its last change. */
export function readVersion(payload: PayloadReader): GuestFile["version"] {
  const whole = payload.slice(versionBytes);
  const parts = new PayloadReader(whole);
  parts.u64();
  const [inode, seconds, nanoseconds] = [parts.u64(), parts.i64(), parts.u32()];
  if (inode === 0) return null;
  return {
    tag: whole.toString("base64url"),
    modifiedAtMs: seconds * 1_000 + Math.floor(nanoseconds / 1e6),
  };
}

export interface OpenFileCalls {
  read(offset: number, length: number): Promise<Buffer>;
  /** A large file, opened by the agent itself; undefined: use `read`. */
  own(): Promise<OwnFile | undefined>;
  close(): void;
}

/** An open file. The answer to `open` has its beginning, so small files need no further round trip. */
export class OpenFile implements GuestFile {
  readonly sizeBytes: number | null;
  readonly version: GuestFile["version"];
  readonly #start: Buffer;
  readonly #calls: OpenFileCalls;
  #own: Promise<OwnFile | undefined> | undefined;
  #handle: number;
  #reading = 0;
  #closing = false;

  constructor(
    handle: number,
    version: GuestFile["version"],
    sizeBytes: number | null,
    start: Buffer,
    calls: OpenFileCalls,
  ) {
    this.#handle = handle;
    this.version = version;
    this.sizeBytes = sizeBytes;
    this.#start = start;
    this.#calls = calls;
  }

  async read(offset: number, length: number, into?: Buffer): Promise<Buffer> {
    if (offset < this.#start.length || this.#handle === 0)
      return this.#start.subarray(offset, offset + length);
    if (this.#closing) throw new Error("read after close");
    this.#reading += 1;
    try {
      const own = into === undefined || into.length === 0 ? undefined : await this.#large();
      return own
        ? await own.read((into as Buffer).subarray(0, length), offset)
        : await this.#calls.read(offset, Math.min(length, readMaxBytes));
    } finally {
      this.#reading -= 1;
      this.#closeIfIdle();
    }
  }

  close(): void {
    this.#closing = true;
    this.#closeIfIdle();
  }

  async #large(): Promise<OwnFile | undefined> {
    if (this.sizeBytes === null || this.sizeBytes < ownFromBytes) return undefined;
    this.#own ??= this.#calls.own();
    return this.#own;
  }

  /** A handle's number is reused after a close, so no read may be under way then. */
  #closeIfIdle(): void {
    if (!this.#closing || this.#reading > 0 || this.#handle === 0) return;
    this.#handle = 0;
    this.#calls.close();
    void this.#own?.then((own) => own?.close());
  }
}
