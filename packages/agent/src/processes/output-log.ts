/**
 * One output stream of a process, kept in memory up to a limit. Offsets count all bytes that were written, kept or not.
 *
 *     0 ······ start ───────── kept ───────── total        keeps the newest: `start` moves on
 *     0 ─────── kept ─────── limit ················ total   keeps the first (exec, whose answer has the beginning of the output)
 *
 * Readers never hold up the writer: a reader that is too slow finds a gap. The log is in the agent's memory, so it survives a suspend, a
 * fork (each clone then has its own) and a restore of the disk.
 */
export type Keep = "newest" | "first";

/** The result of a read at an offset: bytes, a gap of dropped bytes, or nothing (more may come, or the log has ended). */
export type Piece =
  | { kind: "data"; data: Buffer }
  | { kind: "gap"; to: number }
  | { kind: "nothing"; over: boolean };

interface Block {
  /** The memory of the block. Its first `used` bytes are output, which never change. */
  data: Buffer;
  used: number;
  /** Offset of its first byte. */
  start: number;
}

/** Counts the memory of logs, and provides and takes back large blocks. */
export interface Account {
  charge(log: OutputLog, bytes: number): void;
  takeBlock(): Buffer;
  giveBlock(block: Buffer): void;
}

const smallestBlockBytes = 256;
export const largestBlockBytes = 65_536;
/** When the first bytes are kept: a chunk of this size that fills most of its memory is kept as it is; smaller ones are copied together. */
const ownBlockBytes = 16_384;

export class OutputLog {
  readonly limitBytes: number;
  readonly #keep: Keep;
  #blocks: Block[] = [];
  #start = 0;
  #total = 0;
  #kept = 0;
  #ended = false;
  #account: Account | undefined;
  readonly #waiting = new Set<() => void>();

  constructor(limitBytes: number, keep: Keep, account?: Account) {
    this.limitBytes = limitBytes;
    this.#keep = keep;
    this.#account = account;
  }

  /** The log of a process from before a cold start: its output is gone. */
  static lost(totalBytes: number): OutputLog {
    const log = new OutputLog(0, "newest");
    log.#total = log.#start = totalBytes;
    log.#ended = true;
    return log;
  }

  /** Bytes written so far. */
  get totalBytes(): number {
    return this.#total;
  }

  /** Offset of the oldest byte that is kept. */
  get startOffset(): number {
    return this.#start;
  }

  /** Whether output was dropped. */
  get truncated(): boolean {
    return this.#start > 0 || this.#keptEnd < this.#total;
  }

  get ended(): boolean {
    return this.#ended;
  }

  /** Memory of all blocks, a little more than the kept output. */
  get memoryBytes(): number {
    return this.#kept;
  }

  /** Appends output; after the end it is dropped. */
  append(chunk: Buffer): void {
    if (this.#ended || chunk.length === 0) return;
    const room = this.#keep === "first" ? Math.max(0, this.limitBytes - this.#total) : chunk.length;
    if (room > 0) this.#store(chunk.length > room ? chunk.subarray(0, room) : chunk);
    this.#total += chunk.length;
    if (this.#keep === "newest") this.dropBefore(this.#total - this.limitBytes);
    this.#notify();
  }

  /** Ends the log: no more output comes. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#notify();
  }

  /** From now on the memory of this log is counted in `account`. */
  chargeTo(account: Account): void {
    this.#account = account;
    if (this.#kept > 0) account.charge(this, this.#kept);
  }

  /** The output at `offset`, at most `maxBytes`. */
  at(offset: number, maxBytes: number): Piece {
    if (offset < this.#start) return { kind: "gap", to: this.#start };
    const end = this.#keptEnd;
    if (offset >= end) {
      if (offset < this.#total) return { kind: "gap", to: this.#total };
      return { kind: "nothing", over: this.#ended };
    }
    const block = this.#blockOf(offset);
    const from = offset - block.start;
    const data = block.data.subarray(from, Math.min(block.used, from + maxBytes));
    // When the newest is kept, blocks are reused, so a slow reader needs a copy.
    return { kind: "data", data: this.#keep === "newest" ? Buffer.from(data) : data };
  }

  /** Drops output before `offset`. */
  dropBefore(offset: number): void {
    if (offset <= this.#start) return;
    this.#start = Math.min(offset, this.#keptEnd);
    while (this.#blocks[0] !== undefined && this.#blocks[0].start + this.#blocks[0].used <= this.#start) {
      this.#free(this.#blocks.shift() as Block);
    }
  }

  /** Drops about `bytes` of the oldest output. */
  drop(bytes: number): void {
    this.dropBefore(this.#start + bytes);
    if (this.#start === this.#keptEnd) this.#start = this.#total;
  }

  /** All kept output as text (bytes that are not UTF-8 become U+FFFD) or in base64. */
  toString(encoding: "utf8" | "base64"): string {
    const parts = this.#blocks.map(({ data, used, start }) =>
      data.subarray(Math.max(0, this.#start - start), used),
    );
    const [only] = parts;
    return (parts.length === 1 && only ? only : Buffer.concat(parts)).toString(encoding);
  }

  /** Calls `listener` once, at the next output or the end; the answer cancels this. */
  onceChanged(listener: () => void): () => void {
    this.#waiting.add(listener);
    return () => void this.#waiting.delete(listener);
  }

  get #keptEnd(): number {
    const last = this.#blocks.at(-1);
    return last === undefined ? this.#start : last.start + last.used;
  }

  #store(chunk: Buffer): void {
    const whole = chunk.buffer.byteLength;
    if (this.#keep === "first" && chunk.length >= ownBlockBytes && chunk.length * 2 >= whole) {
      this.#blocks.push({ data: chunk, used: chunk.length, start: this.#total });
      this.#count(whole);
      return;
    }
    let at = 0;
    while (at < chunk.length) {
      let block = this.#blocks.at(-1);
      if (block === undefined || block.used === block.data.length)
        block = this.#newBlock(chunk.length - at, at);
      const copied = chunk.copy(block.data, block.used, at);
      block.used += copied;
      at += copied;
    }
  }

  /** A block twice as large as the previous one: a stream of single bytes needs few blocks, and a line of text little memory. */
  #newBlock(wanted: number, ahead: number): Block {
    const before = this.#blocks.at(-1)?.data.length ?? smallestBlockBytes / 2;
    const size = Math.min(largestBlockBytes, Math.max(smallestBlockBytes, before * 2, wanted));
    const pooled = size === largestBlockBytes ? this.#account?.takeBlock() : undefined;
    const block = { data: pooled ?? Buffer.allocUnsafeSlow(size), used: 0, start: this.#total + ahead };
    this.#blocks.push(block);
    this.#count(size);
    return block;
  }

  #free({ data }: Block): void {
    this.#count(-data.buffer.byteLength);
    if (this.#keep === "newest" && data.length === largestBlockBytes) this.#account?.giveBlock(data);
  }

  #blockOf(offset: number): Block {
    let low = 0;
    let high = this.#blocks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.#blocks[middle] as Block).start <= offset) low = middle;
      else high = middle - 1;
    }
    return this.#blocks[low] as Block;
  }

  #count(bytes: number): void {
    this.#kept += bytes;
    this.#account?.charge(this, bytes);
  }

  #notify(): void {
    if (this.#waiting.size === 0) return;
    const listeners = [...this.#waiting];
    this.#waiting.clear();
    for (const listener of listeners) listener();
  }
}

/** Resolves when one of the logs changes, or the signal aborts. */
export function outputChange(logs: readonly OutputLog[], signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const done = (): void => {
      for (const cancel of cancels) cancel();
      signal.removeEventListener("abort", done);
      resolve();
    };
    const cancels = logs.map((log) => log.onceChanged(done));
    signal.addEventListener("abort", done, { once: true });
  });
}
