import { createHash } from "node:crypto";
import { pipeline, Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import { ImageError } from "./image-error.ts";
import { isZstd, unzstd } from "./zstd-frames.ts";

/** The tar of a layer. Its first bytes tell the compression, because media types are not always right. */
export function decompress(compressed: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
  return decompressed(compressed);
}

async function* decompressed(compressed: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  const source = compressed[Symbol.asyncIterator]();
  let head: Buffer = Buffer.alloc(0);
  while (head.length < 4) {
    const { done, value } = await source.next();
    if (done === true) break;
    head = Buffer.concat([head, value]);
  }
  const whole = rejoin(head, source);
  try {
    if (isZstd(head)) yield* unzstd(whole);
    else if (head[0] === 0x1f && head[1] === 0x8b) yield* gunzip(whole);
    else if (isForeign(head)) {
      throw new ImageError("a layer is compressed with xz or bzip2; gzip, zstd and plain tar are supported");
    } else yield* whole;
  } catch (error) {
    if (error instanceof ImageError) throw error;
    throw new ImageError("a layer cannot be decompressed", error);
  }
}

function gunzip(compressed: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
  const decoder = createGunzip({ chunkSize: 256 * 1024 });
  // The reader of the decoder gets the error.
  return pipeline(Readable.from(compressed, { objectMode: false }), decoder, () => undefined);
}

/** xz and bzip2. */
const isForeign = (head: Buffer): boolean =>
  (head.length >= 4 && head.readUInt32LE(0) === 0x587a37fd) || head.toString("latin1", 0, 3) === "BZh";

async function* rejoin(head: Buffer, source: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  if (head.length > 0) yield head;
  for (;;) {
    const { done, value } = await source.next();
    if (done === true) return;
    yield value;
  }
}

/** Passes a tar through and at its end verifies its digest against the image's config. */
export async function* checked(
  tar: AsyncIterable<Buffer>,
  diffId: string,
  maxBytes: number,
): AsyncGenerator<Buffer> {
  const [algorithm = "sha256", expected = ""] = diffId.split(":");
  const hash = createHash(algorithm);
  let sizeBytes = 0;
  for await (const chunk of tar) {
    sizeBytes += chunk.length;
    if (sizeBytes > maxBytes) throw new ImageError("the image is larger than the sandbox's disk");
    hash.update(chunk);
    yield chunk;
  }
  if (hash.digest("hex") !== expected)
    throw new ImageError(`a layer's content is not what the image's config says (${diffId})`);
}
