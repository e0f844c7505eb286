/**
 * The log of a service (stdout and stderr in order, and the supervisor's `[cloche]` lines), in files on the sandbox's disk. A file is named
 * by the position in the whole log at which it begins, so positions stay valid across rotation and restarts. After
 * `limits.serviceLogBytes` the next file begins; only the newest `limits.serviceLogFiles` are kept.
 *
 * Owned by one service; read by its log route. A crash loses at most output that was not written yet, never the order.
 */
import { constants, mkdirSync, readdirSync, rmSync, statSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "@cloche/protocol";

interface Segment {
  start: number;
  sizeBytes: number;
}

const readBytes = 64 * 1024;
const digits = 15;

export class ServiceLog {
  readonly #folder: string;
  readonly #segmentBytes: number;
  #segments: Segment[] = [];
  #file: FileHandle | undefined;
  #pending: Buffer[] = [];
  #draining: Promise<void> | undefined;
  #lostBytes = 0;
  #growth = Promise.withResolvers<void>();
  #closed = false;

  constructor(folder: string, segmentBytes: number = limits.serviceLogBytes) {
    this.#folder = folder;
    this.#segmentBytes = segmentBytes;
    try {
      const names = readdirSync(folder).filter((name) => /^[0-9]{15}\.log$/.test(name));
      this.#segments = names
        .map((name) => ({ start: Number.parseInt(name, 10), sizeBytes: statSync(join(folder, name)).size }))
        .sort((one, other) => one.start - other.start);
    } catch {
      // No log exists yet.
    }
  }

  /** Position of the first byte (older output was rotated away). */
  get start(): number {
    return this.#segments[0]?.start ?? 0;
  }

  /** Position of the next byte. */
  get end(): number {
    const last = this.#segments.at(-1);
    return last === undefined ? 0 : last.start + last.sizeBytes;
  }

  /** Resolves when the chunk is written, or dropped because the disk is full: a log never stops its service. */
  append(chunk: Buffer): Promise<void> {
    if (this.#closed || chunk.length === 0) return Promise.resolve();
    this.#pending.push(chunk);
    this.#draining ??= this.#drain();
    return this.#draining;
  }

  /** Appends a line of the supervisor. */
  note(text: string): void {
    void this.append(Buffer.from(`[cloche] ${text}\n`));
  }

  /** Resolves when everything appended so far is in the file. */
  async flush(): Promise<void> {
    while (this.#draining !== undefined) await this.#draining;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.flush();
    await this.#file?.close();
    this.#file = undefined;
    this.#growth.resolve();
  }

  /** Position from which the last `lines` lines can be read. */
  async tailPosition(lines: number): Promise<number> {
    await this.flush();
    let position = this.end;
    if (lines <= 0) return position;
    let newlines = 0;
    while (position > this.start) {
      const from = Math.max(this.start, position - readBytes);
      const block = await this.#read(from, position - from);
      for (let at = block.length - 1; at >= 0; at -= 1) {
        if (block[at] !== 0x0a || from + at === this.end - 1) continue;
        newlines += 1;
        if (newlines === lines) return from + at + 1;
      }
      if (block.length === 0) break;
      position = from;
    }
    return this.start;
  }

  /** The log from `position` on; with `follow` also new output until `signal` aborts or the log is closed. */
  async *read(position: number, follow: boolean, signal: AbortSignal): AsyncGenerator<Buffer> {
    await this.flush();
    let at = position;
    const aborted = new Promise<void>((resolve) => {
      signal.addEventListener("abort", () => resolve(), { once: true });
    });
    const end = follow ? Number.POSITIVE_INFINITY : this.end;
    while (!signal.aborted && at < end) {
      const growth = this.#growth.promise;
      at = Math.max(at, this.start);
      const block = await this.#read(at, Math.min(readBytes, end - at));
      if (block.length > 0) {
        at += block.length;
        yield block;
      } else if (!follow || this.#closed) return;
      else await Promise.race([growth, aborted]);
    }
  }

  async #drain(): Promise<void> {
    while (this.#pending.length > 0) {
      const chunks = this.#pending;
      this.#pending = [];
      const bytes = chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks);
      try {
        await this.#write(bytes);
      } catch {
        this.#lostBytes += bytes.length;
        await this.#file?.close().catch(() => undefined);
        this.#file = undefined;
      }
    }
    this.#draining = undefined;
  }

  async #write(bytes: Buffer): Promise<void> {
    const last = this.#segments.at(-1);
    if (last === undefined || last.sizeBytes >= this.#segmentBytes) await this.#rotate();
    const segment = this.#segments.at(-1);
    if (segment === undefined) return;
    this.#file ??= await open(
      this.#path(segment),
      constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND | constants.O_NOFOLLOW,
      0o600,
    );
    const lost = this.#lostBytes;
    const text =
      lost > 0
        ? Buffer.concat([Buffer.from(`\n[cloche] ${lost} bytes were lost: the disk was full\n`), bytes])
        : bytes;
    this.#lostBytes = 0;
    let written = 0;
    while (written < text.length) {
      const { bytesWritten } = await this.#file.write(text, written);
      written += bytesWritten;
      segment.sizeBytes += bytesWritten;
    }
    this.#growth.resolve();
    this.#growth = Promise.withResolvers<void>();
  }

  async #rotate(): Promise<void> {
    const start = this.end;
    await this.#file?.close();
    this.#file = undefined;
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    this.#segments.push({ start, sizeBytes: 0 });
    for (const old of this.#segments.splice(0, this.#segments.length - limits.serviceLogFiles)) {
      rmSync(this.#path(old), { force: true });
    }
  }

  /** Up to `length` bytes from `position`, of one file. */
  async #read(position: number, length: number): Promise<Buffer> {
    const segment = this.#segments.findLast(({ start }) => start <= position);
    if (segment === undefined) return Buffer.alloc(0);
    const wanted = Math.min(length, segment.start + segment.sizeBytes - position);
    if (wanted <= 0) return Buffer.alloc(0);
    let file: FileHandle;
    try {
      file = await open(this.#path(segment), constants.O_RDONLY | constants.O_NOFOLLOW);
    } catch {
      return Buffer.alloc(0); // the file was rotated away meanwhile
    }
    try {
      const { bytesRead, buffer } = await file.read(
        Buffer.alloc(wanted),
        0,
        wanted,
        position - segment.start,
      );
      return buffer.subarray(0, bytesRead);
    } finally {
      await file.close();
    }
  }

  #path(segment: Segment): string {
    return join(this.#folder, `${String(segment.start).padStart(digits, "0")}.log`);
  }
}
