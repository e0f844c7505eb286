/** Frames between the agent and a guest (native/guest/PROTOCOL.md); native/guest/wire.c is the other side. */
export const wireVersion = 3;
export const headerBytes = 12;
export const frameMaxBytes = 4 * 1024 * 1024;
/** Bytes of stdin that may be sent before the first credit; also the largest read of a file. */
export const stdinWindowBytes = 262_144;
export const readMaxBytes = 262_144;

export const frameTypes = {
  spawn: 1,
  stdin: 2,
  stdinEnd: 3,
  credit: 4,
  signal: 5,
  kill: 6,
  resize: 7,
  guest: 8,
  renew: 9,
  pid: 10,
  containers: 11,
  lstat: 32,
  open: 33,
  read: 34,
  close: 35,
  write: 36,
  remove: 37,
  list: 38,
  mkdir: 39,
  move: 40,
  sync: 41,
  hostname: 42,
  together: 43,
  as: 44,
  upload: 45,
  uploadData: 46,
  uploadEnd: 47,
  copy: 48,
  chmod: 49,
  chown: 50,
  watch: 51,
  watchMore: 52,
  unwatch: 53,
  bootId: 54,
  hello: 64,
  started: 65,
  stdout: 66,
  stderr: 67,
  stdinCredit: 68,
  exit: 69,
  ended: 70,
  error: 71,
  fatal: 72,
  renewed: 73,
  done: 96,
  entries: 97,
  data: 98,
  opened: 99,
  failed: 100,
  outOfMemory: 101,
  watching: 102,
  events: 103,
} as const;

/** `quiet`: a write is answered without an entry. */
export const writeFlags = { quiet: 1 } as const;
/** `attributes`: the entries come with their extended attributes. */
export const statFlags = { follow: 1, attributes: 2 } as const;
export const listFlags = { attributes: 1 } as const;
export const uploadFlags = { append: 1 } as const;
export const uploadEndFlags = { abandon: 1 } as const;
export const spawnFlags = { stdin: 1, pty: 2, hold: 4, self: 8, quiet: 16, merge: 32 } as const;
export const signalScopes = { program: 0, tree: 1, group: 2 } as const;

export interface Frame {
  readonly type: number;
  readonly flags: number;
  readonly id: number;
  readonly payload: Buffer;
}

/** Cuts a byte stream into frames. Throws on an impossible length. */
export class FrameReader {
  #held: Buffer[] = [];
  #heldBytes = 0;
  #wanted = 4;

  /** Calls `onFrame` for every frame that `chunk` completes; payloads may share memory with `chunk`. */
  push(chunk: Buffer, onFrame: (frame: Frame) => void): void {
    if (this.#heldBytes + chunk.length < this.#wanted) {
      this.#hold(chunk);
      return;
    }
    const data = this.#heldBytes === 0 ? chunk : Buffer.concat([...this.#held, chunk]);
    this.#held = [];
    this.#heldBytes = 0;
    this.#wanted = 4;
    let at = 0;
    while (data.length - at >= 4) {
      const length = data.readUInt32LE(at);
      if (length < headerBytes - 4 || length > frameMaxBytes - 4) throw new Error(`frame of ${length} bytes`);
      const end = at + 4 + length;
      if (end > data.length) {
        this.#wanted = end - at;
        break;
      }
      onFrame({
        type: data.readUInt8(at + 4),
        flags: data.readUInt8(at + 5),
        id: data.readUInt32LE(at + 8),
        payload: data.subarray(at + headerBytes, end),
      });
      at = end;
    }
    if (at < data.length) this.#hold(data.subarray(at));
  }

  #hold(chunk: Buffer): void {
    this.#held.push(chunk);
    this.#heldBytes += chunk.length;
  }
}

/** Builds one frame. Sizes are little-endian; a string is its size, its bytes and a NUL that is not counted. */
export class FrameWriter {
  #parts: Buffer[] = [];
  #bytes = headerBytes;

  u16(value: number): this {
    const part = Buffer.allocUnsafe(2);
    part.writeUInt16LE(value);
    return this.#add(part);
  }

  u32(value: number): this {
    const part = Buffer.allocUnsafe(4);
    part.writeUInt32LE(value >>> 0);
    return this.#add(part);
  }

  u64(value: number): this {
    const part = Buffer.allocUnsafe(8);
    part.writeBigUInt64LE(BigInt(value));
    return this.#add(part);
  }

  string(value: string | Buffer): this {
    const size = typeof value === "string" ? Buffer.byteLength(value) : value.length;
    const part = Buffer.allocUnsafe(size + 5);
    part.writeUInt32LE(size);
    if (typeof value === "string") part.write(value, 4);
    else value.copy(part, 4);
    part[size + 4] = 0;
    return this.#add(part);
  }

  strings(values: readonly (string | Buffer)[]): this {
    this.u32(values.length);
    for (const value of values) this.string(value);
    return this;
  }

  /** Raw bytes without their size. */
  raw(value: Buffer): this {
    return this.#add(value);
  }

  get sizeBytes(): number {
    return this.#bytes;
  }

  /** `restBytes`: number of further bytes of the frame that are sent right after it. */
  finish(type: number, flags: number, id: number, restBytes = 0): Buffer {
    const header = Buffer.alloc(headerBytes);
    header.writeUInt32LE(this.#bytes + restBytes - 4, 0);
    header.writeUInt8(type, 4);
    header.writeUInt8(flags, 5);
    header.writeUInt32LE(id >>> 0, 8);
    return this.#parts.length === 0 ? header : Buffer.concat([header, ...this.#parts], this.#bytes);
  }

  #add(part: Buffer): this {
    this.#parts.push(part);
    this.#bytes += part.length;
    return this;
  }
}

/** Reads the fields of a payload in order. Throws Buffer's RangeError if it is too short: the guest broke the protocol. */
export class PayloadReader {
  #at = 0;
  readonly #data: Buffer;

  constructor(data: Buffer) {
    this.#data = data;
  }

  get ended(): boolean {
    return this.#at >= this.#data.length;
  }

  u8(): number {
    const value = this.#data.readUInt8(this.#at);
    this.#at += 1;
    return value;
  }

  u32(): number {
    const value = this.#data.readUInt32LE(this.#at);
    this.#at += 4;
    return value;
  }

  u64(): number {
    const value = Number(this.#data.readBigUInt64LE(this.#at));
    this.#at += 8;
    return value;
  }

  i64(): number {
    const value = Number(this.#data.readBigInt64LE(this.#at));
    this.#at += 8;
    return value;
  }

  slice(bytes: number): Buffer {
    if (this.#at + bytes > this.#data.length) throw new RangeError("a payload is too short");
    this.#at += bytes;
    return this.#data.subarray(this.#at - bytes, this.#at);
  }

  /** A string's bytes. Strings from init and the file server have no NUL. */
  bytes(): Buffer {
    const size = this.u32();
    if (this.#at + size > this.#data.length) throw new RangeError("string beyond the end of its frame");
    this.#at += size;
    return this.#data.subarray(this.#at - size, this.#at);
  }

  rest(): Buffer {
    return this.#data.subarray(this.#at);
  }
}
