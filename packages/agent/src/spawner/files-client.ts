import { GuestFileError } from "./errors.ts";
import type { EntryKind, GuestEntry, GuestFile, GuestFiles, GuestPath } from "./types.ts";
import {
  type Frame,
  frameTypes,
  FrameWriter,
  headerBytes,
  PayloadReader,
  readMaxBytes,
  writeFlags,
} from "./wire.ts";

const kinds: readonly EntryKind[] = ["file", "directory", "symlink", "fifo", "socket", "device"];

/** Of a file's version in OPENED. */
const versionBytes = 48;

/** What came in more pieces than this (a client that sends byte by byte) is put together before it is sent on. */
const piecesMax = 128;

function readEntry(payload: PayloadReader): GuestEntry {
  const kind = kinds[payload.u8() - 1];
  if (!kind) throw new RangeError("unknown kind of entry");
  return {
    kind,
    mode: payload.u32(),
    sizeBytes: payload.u64(),
    modifiedAtMs: payload.i64(),
    path: payload.bytes(),
    owner: payload.bytes().toString(),
    group: payload.bytes().toString(),
    symlinkTarget: payload.bytes(),
  };
}

/** Of a file on a disk: which one it is, and when it was last changed. */
function readVersion(payload: PayloadReader): GuestFile["version"] {
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

interface Answer {
  entries: GuestEntry[];
  flags: number;
  payload: Buffer;
}

interface Pending {
  entries: GuestEntry[];
  resolve: (answer: Answer) => void;
  reject: (error: Error) => void;
}

/** Speaks to the file server of one guest. Requests are independent: a slow one delays no other. */
export class FilesClient implements GuestFiles {
  #send: (frame: Buffer, rest?: readonly Buffer[]) => void;
  readonly #pending = new Map<number, Pending>();
  #lastId = 0;
  #lost: Error | undefined;

  /** `send`: a frame, and what of its payload follows as it is. */
  constructor(send: (frame: Buffer, rest?: readonly Buffer[]) => void) {
    this.#send = send;
  }

  async lstat(path: GuestPath): Promise<GuestEntry> {
    return only(await this.#ask(frameTypes.lstat, 0, new FrameWriter().string(path)));
  }

  async open(path: GuestPath, prefetchBytes = readMaxBytes): Promise<GuestFile> {
    const writer = new FrameWriter().string(path).u32(prefetchBytes);
    const answer = new PayloadReader((await this.#ask(frameTypes.open, 0, writer)).payload);
    const handle = answer.u32();
    const size = answer.u64();
    const version = readVersion(answer);
    const start = answer.rest();
    return new OpenFile(
      handle,
      version,
      // No size but content: the system makes it up on reading, and it did not fit the first read.
      size === 0 && handle !== 0 && start.length > 0 ? null : size,
      start,
      (offset, length) => this.#read(handle, offset, length),
      () => this.#close(handle),
    );
  }

  async write(path: GuestPath, data: Buffer | readonly Buffer[], mode?: number): Promise<GuestEntry> {
    return only(await this.#write(path, data, mode, 0));
  }

  async put(path: GuestPath, data: Buffer, mode: number): Promise<void> {
    await this.#write(path, data, mode, writeFlags.quiet);
  }

  together<Answers>(ask: () => Answers): Answers {
    const send = this.#send;
    const frames = new FrameWriter();
    this.#send = (frame, rest = []) => [frame, ...rest].forEach((part) => frames.raw(part));
    try {
      return ask();
    } finally {
      this.#send = send;
      if (frames.sizeBytes > headerBytes) send(frames.finish(frameTypes.together, 0, 0));
    }
  }

  #write(
    path: GuestPath,
    data: Buffer | readonly Buffer[],
    mode: number | undefined,
    flags: number,
  ): Promise<Answer> {
    const pieces = Buffer.isBuffer(data) ? [data] : data.length > piecesMax ? [Buffer.concat(data)] : data;
    const bytes = pieces.reduce((sum, piece) => sum + piece.length, 0);
    const writer = new FrameWriter()
      .string(path)
      .u32(mode ?? 0xffffffff)
      .u32(bytes);
    return this.#ask(frameTypes.write, flags, writer, { pieces, bytes });
  }

  async remove(path: GuestPath, recursive: boolean): Promise<void> {
    await this.#ask(frameTypes.remove, recursive ? 1 : 0, new FrameWriter().string(path));
  }

  async list(
    path: GuestPath,
    depth: number,
    limit: number,
  ): Promise<{ entries: GuestEntry[]; truncated: boolean }> {
    const writer = new FrameWriter().string(path).u32(depth).u32(limit);
    const { entries, flags } = await this.#ask(frameTypes.list, 0, writer);
    return { entries, truncated: flags !== 0 };
  }

  async mkdir(path: GuestPath, parents: boolean): Promise<GuestEntry> {
    return only(await this.#ask(frameTypes.mkdir, parents ? 1 : 0, new FrameWriter().string(path)));
  }

  async move(source: GuestPath, destination: GuestPath): Promise<GuestEntry> {
    return only(await this.#ask(frameTypes.move, 0, new FrameWriter().string(source).string(destination)));
  }

  async sync(): Promise<void> {
    await this.#ask(frameTypes.sync, 0, new FrameWriter());
  }

  async setHostname(hostname: string): Promise<void> {
    await this.#ask(frameTypes.hostname, 0, new FrameWriter().string(hostname));
  }

  /** A frame from the file server. */
  onFrame(frame: Frame): void {
    const pending = this.#pending.get(frame.id);
    if (!pending) return;
    if (frame.type === frameTypes.entries) {
      const payload = new PayloadReader(frame.payload);
      while (!payload.ended) pending.entries.push(readEntry(payload));
      return;
    }
    this.#pending.delete(frame.id);
    if (frame.type === frameTypes.failed) {
      const errno = frame.payload.readUInt32LE(0);
      const subject = frame.flags === 1 ? "destination" : "path";
      pending.reject(new GuestFileError(errno, subject, `errno ${errno}`));
      return;
    }
    pending.resolve({ entries: pending.entries, flags: frame.flags, payload: frame.payload });
  }

  /** The guest is gone: nothing pending or later will be answered. */
  onLost(error: Error): void {
    this.#lost = error;
    for (const pending of this.#pending.values()) pending.reject(error);
    this.#pending.clear();
  }

  #ask(
    type: number,
    flags: number,
    writer: FrameWriter,
    rest?: { pieces: readonly Buffer[]; bytes: number },
  ): Promise<Answer> {
    if (this.#lost) return Promise.reject(this.#lost);
    do this.#lastId = (this.#lastId + 1) >>> 0;
    while (this.#pending.has(this.#lastId));
    const id = this.#lastId;
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    this.#pending.set(id, { entries: [], resolve, reject });
    this.#send(writer.finish(type, flags, id, rest?.bytes), rest?.pieces);
    return promise;
  }

  async #read(handle: number, offset: number, length: number): Promise<Buffer> {
    const writer = new FrameWriter().u32(handle).u64(offset).u32(length);
    return (await this.#ask(frameTypes.read, 0, writer)).payload;
  }

  #close(handle: number): void {
    if (!this.#lost) this.#send(new FrameWriter().u32(handle).finish(frameTypes.close, 0, 0));
  }
}

function only(answer: Answer): GuestEntry {
  const entry = answer.entries[0];
  if (!entry) throw new RangeError("the file server answered without an entry");
  return entry;
}

/** A file whose beginning came with the answer to `open`; small files need no further round trip. */
class OpenFile implements GuestFile {
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
