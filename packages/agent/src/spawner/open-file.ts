import type { GuestFile } from "./file-types.ts";
import { PayloadReader, readMaxBytes } from "./wire.ts";

/** Of a file's version in OPENED. */
const versionBytes = 48;

/** Of a file on a disk: which one it is, and when it was last changed. */
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

/** A file whose beginning came with the answer to `open`; small files need no further round trip. */
export class OpenFile implements GuestFile {
  readonly sizeBytes: number | null;
  readonly version: GuestFile["version"];
  readonly #start: Buffer;
  readonly #read: (offset: number, length: number) => Promise<Buffer>;
  readonly #close: () => void;
  #handle: number;
  #reading = 0;
  #closing = false;

  constructor(
    handle: number,
    version: GuestFile["version"],
    sizeBytes: number | null,
    start: Buffer,
    read: (offset: number, length: number) => Promise<Buffer>,
    close: () => void,
  ) {
    this.#handle = handle;
    this.version = version;
    this.sizeBytes = sizeBytes;
    this.#start = start;
    this.#read = read;
    this.#close = close;
  }

  async read(offset: number, length: number): Promise<Buffer> {
    if (offset < this.#start.length || this.#handle === 0)
      return this.#start.subarray(offset, offset + length);
    if (this.#closing) throw new Error("read after close");
    this.#reading += 1;
    try {
      return await this.#read(offset, Math.min(length, readMaxBytes));
    } finally {
      this.#reading -= 1;
      this.#closeIfIdle();
    }
  }

  close(): void {
    this.#closing = true;
    this.#closeIfIdle();
  }

  /** The number of the handle is given out again after a close, so no read may be on its way. */
  #closeIfIdle(): void {
    if (!this.#closing || this.#reading > 0 || this.#handle === 0) return;
    this.#handle = 0;
    this.#close();
  }
}
