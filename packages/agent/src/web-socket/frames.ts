/** Frames of RFC 6455 as a server reads and writes them. */
import { GatheredBytes } from "@cloche/protocol";

export const opcodes = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const;

export interface Frame {
  fin: boolean;
  opcode: number;
  payload: Buffer;
}

/** A fault of the client; `code` is the code of the close frame. */
export class WebSocketError extends Error {
  override readonly name = "WebSocketError";
  readonly code: number;

  constructor(code: number, reason: string) {
    super(reason);
    this.code = code;
  }
}

const known: ReadonlySet<number> = new Set(Object.values(opcodes));
const controlBytes = 125;
const emptyBuffer = Buffer.alloc(0);

/** Cuts a client's bytes into frames. Holds at most one frame of `maxBytes` and the rest of one read. */
export class FrameReader {
  readonly #maxBytes: number;
  #held: Buffer = emptyBuffer;
  readonly #arrived = new GatheredBytes();
  /** Bytes needed to complete the head or frame that is being read. */
  #wanted = 2;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  push(chunk: Buffer): void {
    this.#arrived.push(chunk);
  }

  /** The next whole frame, unmasked; undefined: not complete yet. Throws `WebSocketError`. */
  next(): Frame | undefined {
    if (this.#held.length + this.#arrived.length < this.#wanted) return undefined;
    if (this.#arrived.length > 0) {
      const { buffer, byteOffset, length } = this.#arrived.take();
      const arrived = Buffer.from(buffer, byteOffset, length);
      this.#held = this.#held.length === 0 ? arrived : Buffer.concat([this.#held, arrived]);
    }
    const data = this.#held;
    const head = headOf(data, this.#maxBytes);
    if (typeof head === "number" || data.length < head.start + head.length) {
      this.#wanted = typeof head === "number" ? head : head.start + head.length;
      return undefined;
    }
    this.#wanted = 2;
    const { fin, opcode, start, length } = head;
    const payload = data.subarray(start, start + length);
    unmask(payload, data.subarray(start - 4, start));
    this.#held = data.length === start + length ? emptyBuffer : data.subarray(start + length);
    return { fin, opcode, payload };
  }
}

interface Head {
  fin: boolean;
  opcode: number;
  /** Offset of the payload; the mask is the four bytes before it. */
  start: number;
  length: number;
}

/** The head of a frame, or the number of bytes needed to read it. */
function headOf(data: Buffer, maxBytes: number): Head | number {
  if (data.length < 2) return 2;
  const [first, second] = [data[0] as number, data[1] as number];
  const opcode = first & 0x0f;
  const fin = (first & 0x80) !== 0;
  if ((first & 0x70) !== 0)
    throw new WebSocketError(1002, "reserved bits are set: no extension was agreed on");
  if (!known.has(opcode)) throw new WebSocketError(1002, `there are no frames of type ${opcode}`);
  if ((second & 0x80) === 0) throw new WebSocketError(1002, "a client's frames must be masked");
  const short = second & 0x7f;
  const isControl = opcode >= opcodes.close;
  if (isControl && (short > controlBytes || !fin)) {
    throw new WebSocketError(1002, "a control frame must be whole and not longer than 125 bytes");
  }
  const extended = short === 126 ? 2 : short === 127 ? 8 : 0;
  if (data.length < 2 + extended) return 2 + extended;
  const length =
    extended === 0 ? short : extended === 2 ? data.readUInt16BE(2) : Number(data.readBigUInt64BE(2));
  if (length > maxBytes)
    throw new WebSocketError(1009, `a message must not be larger than ${maxBytes} bytes`);
  return { fin, opcode, start: 2 + extended + 4, length };
}

function unmask(payload: Buffer, mask: Buffer): void {
  const [a, b, c, d] = [mask[0] as number, mask[1] as number, mask[2] as number, mask[3] as number];
  const even = payload.length & ~3;
  for (let at = 0; at < even; at += 4) {
    payload[at] = (payload[at] as number) ^ a;
    payload[at + 1] = (payload[at + 1] as number) ^ b;
    payload[at + 2] = (payload[at + 2] as number) ^ c;
    payload[at + 3] = (payload[at + 3] as number) ^ d;
  }
  for (let at = even; at < payload.length; at += 1)
    payload[at] = (payload[at] as number) ^ (mask[at & 3] as number);
}

/** The head of a whole server frame. `prefix` is the first byte of the payload. */
export function frameHead(opcode: number, payloadBytes: number, prefix?: number): Buffer {
  const length = payloadBytes + (prefix === undefined ? 0 : 1);
  const extended = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const head = Buffer.allocUnsafe(2 + extended + (prefix === undefined ? 0 : 1));
  head[0] = 0x80 | opcode;
  head[1] = extended === 0 ? length : extended === 2 ? 126 : 127;
  if (extended === 2) head.writeUInt16BE(length, 2);
  else if (extended === 8) head.writeBigUInt64BE(BigInt(length), 2);
  if (prefix !== undefined) head[head.length - 1] = prefix;
  return head;
}
