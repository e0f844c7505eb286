import { pipeline, Readable } from "node:stream";
import { createZstdDecompress } from "node:zlib";
import { ImageError } from "./image-error.ts";

const frameMagic = 0xfd2fb528;

/** Whether bytes begin with a zstd frame or a skippable frame (zstd:chunked). */
export function isZstd(head: Buffer): boolean {
  return head.length >= 4 && (head.readUInt32LE(0) === frameMagic || isSkippable(head.readUInt32LE(0)));
}

/** Decompresses zstd frame by frame, because Node's decoder silently stops after the first frame. */
export async function* unzstd(source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  const input = new ByteSource(source);
  for (;;) {
    const magic = await input.exactly(4, true);
    if (magic === undefined) return;
    const number = magic.readUInt32LE(0);
    if (isSkippable(number)) {
      for await (const _part of input.parts(((await input.exactly(4)) ?? magic).readUInt32LE(0))) continue;
    } else if (number === frameMagic) {
      const decoder = createZstdDecompress({ chunkSize: 256 * 1024 });
      // The reader of the decoder gets the error.
      const output = pipeline(
        Readable.from(frame(magic, input), { objectMode: false }),
        decoder,
        () => undefined,
      );
      yield* output as AsyncIterable<Buffer>;
    } else throw new ImageError("a layer has something that is no zstd frame");
  }
}

const isSkippable = (magic: number): boolean => (magic & 0xfffffff0) >>> 0 === 0x184d2a50;

/** The bytes of one frame (RFC 8878, 3.1.1): header, blocks up to the last, checksum. */
async function* frame(magic: Buffer, input: ByteSource): AsyncGenerator<Buffer> {
  yield magic;
  const descriptor = await input.some(1);
  yield descriptor;
  const flags = descriptor[0] ?? 0;
  const singleSegment = (flags & 0x20) !== 0;
  const contentSizeBytes = [singleSegment ? 1 : 0, 2, 4, 8][flags >> 6] ?? 0;
  const dictionaryBytes = [0, 1, 2, 4][flags & 3] ?? 0;
  yield* input.parts((singleSegment ? 0 : 1) + dictionaryBytes + contentSizeBytes);
  for (let last = false; !last; ) {
    const header = await input.some(3);
    yield header;
    const bits = header.readUIntLE(0, 3);
    last = (bits & 1) === 1;
    const isRunLength = ((bits >> 1) & 3) === 1;
    yield* input.parts(isRunLength ? 1 : bits >> 3);
  }
  if ((flags & 4) !== 0) yield* input.parts(4);
}

class ByteSource {
  readonly #source: AsyncIterator<Buffer>;
  #chunk: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Exactly `length` bytes, in pieces as they arrive. */
  async *parts(length: number): AsyncGenerator<Buffer> {
    for (let left = length; left > 0; ) {
      if (!(await this.#fill())) throw new ImageError("a layer ends in the middle of a zstd frame");
      const part = this.#chunk.subarray(0, left);
      this.#chunk = this.#chunk.subarray(part.length);
      left -= part.length;
      yield part;
    }
  }

  async some(length: number): Promise<Buffer> {
    const parts: Buffer[] = [];
    for await (const part of this.parts(length)) parts.push(part);
    return parts.length === 1 && parts[0] !== undefined ? parts[0] : Buffer.concat(parts);
  }

  /** As `some`. With `mayEnd`: undefined if the source ends before the first byte. */
  async exactly(length: number, mayEnd = false): Promise<Buffer | undefined> {
    if (mayEnd && !(await this.#fill())) return undefined;
    return this.some(length);
  }

  async #fill(): Promise<boolean> {
    while (this.#chunk.length === 0) {
      const { done, value } = await this.#source.next();
      if (done === true) return false;
      this.#chunk = value;
    }
    return true;
  }
}
