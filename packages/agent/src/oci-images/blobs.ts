/**
 * Blobs of images on the sandbox's disk, named by digest, shared by all its containers. A blob in the folder is complete and verified. A
 * blob that is being fetched is in `incoming`, and is removed if its pull fails.
 */
import { createHash } from "node:crypto";
import { createReadStream, lstatSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { open, rename } from "node:fs/promises";
import { join } from "node:path";
import { ImageError } from "./image-error.ts";
import type { Descriptor } from "./manifest.ts";

export class BlobCache {
  readonly #folder: string;

  constructor(imagesFolder: string) {
    this.#folder = imagesFolder;
  }

  has({ digest, sizeBytes }: Descriptor): boolean {
    const stat = lstatSync(this.#path(digest), { throwIfNoEntry: false });
    return stat?.isFile() === true && stat.size === sizeBytes;
  }

  stream(digest: string): AsyncIterable<Buffer> {
    return createReadStream(this.#path(digest), { highWaterMark: 256 * 1024 });
  }

  bytes(digest: string): Buffer {
    return readFileSync(this.#path(digest));
  }

  /** Stores a blob while it arrives. Throws ImageError if its size or digest is wrong. */
  async keep(
    descriptor: Descriptor,
    content: AsyncIterable<Buffer>,
    onBytes?: (bytes: number) => void,
  ): Promise<void> {
    const { digest, sizeBytes } = descriptor;
    const [algorithm = "", expected = ""] = digest.split(":");
    mkdirSync(join(this.#folder, "incoming"), { recursive: true, mode: 0o700 });
    mkdirSync(join(this.#folder, "blobs", algorithm), { recursive: true, mode: 0o700 });
    const draft = join(this.#folder, "incoming", `${algorithm}-${expected}`);
    const hash = createHash(algorithm);
    const file = await open(draft, "w", 0o600);
    try {
      let received = 0;
      for await (const chunk of content) {
        received += chunk.length;
        if (received > sizeBytes)
          throw new ImageError(`the blob ${digest} is larger than its manifest says (${sizeBytes} bytes)`);
        hash.update(chunk);
        await file.writeFile(chunk);
        onBytes?.(chunk.length);
      }
      if (received < sizeBytes)
        throw new ImageError(`the blob ${digest} ended after ${received} of ${sizeBytes} bytes`);
      const found = hash.digest("hex");
      if (found !== expected)
        throw new ImageError(`the blob ${digest} has another content: its digest is ${algorithm}:${found}`);
    } catch (error) {
      rmSync(draft, { force: true });
      throw error;
    } finally {
      await file.close();
    }
    await rename(draft, this.#path(digest));
  }

  /** Removes files of interrupted pulls. */
  removeIncoming(): void {
    rmSync(join(this.#folder, "incoming"), { recursive: true, force: true });
  }

  /** Removes every blob that is not among `digests`. */
  keepOnly(digests: ReadonlySet<string>): void {
    for (const algorithm of listFolder(join(this.#folder, "blobs"))) {
      for (const hex of listFolder(join(this.#folder, "blobs", algorithm))) {
        if (!digests.has(`${algorithm}:${hex}`))
          rmSync(join(this.#folder, "blobs", algorithm, hex), { force: true });
      }
    }
  }

  #path(digest: string): string {
    const [algorithm = "", hex = ""] = digest.split(":");
    return join(this.#folder, "blobs", algorithm, hex);
  }
}

function listFolder(path: string): string[] {
  try {
    return readdirSync(path);
  } catch {
    return [];
  }
}
