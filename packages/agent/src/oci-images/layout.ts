import { ImageError } from "./image-error.ts";
import { imageLimits } from "./image-limits.ts";
import { type Descriptor, type IndexEntry, parseManifest } from "./manifest.ts";
import type { ImageSource } from "./source.ts";

/** Reads a file of the users' tree, with their view of it. Throws ImageError. Answers fewer bytes only at the end of the file. */
export type ReadGuestFile = (path: string, offset: number, length: number) => Promise<Buffer>;

const chunkBytes = 256 * 1024;

/** An OCI image layout in the users' tree (`oci:/path[:tag]`), read through the guest, so that no link leads outside of the tree. */
export class LayoutSource implements ImageSource {
  readonly #path: string;
  readonly #tag: string | undefined;
  readonly #read: ReadGuestFile;

  constructor(path: string, tag: string | undefined, read: ReadGuestFile) {
    this.#path = path.replace(/\/+$/, "");
    this.#tag = tag;
    this.#read = read;
  }

  async root(): Promise<Buffer> {
    const bytes = await this.#whole(`${this.#path}/index.json`);
    const parsed = parseManifest(bytes);
    if (!("index" in parsed)) throw new ImageError(`${this.#path}/index.json is no OCI index`);
    const entries =
      this.#tag === undefined ? parsed.index : parsed.index.filter(({ refName }) => refName === this.#tag);
    if (entries.length === 0) {
      const names = parsed.index.map(({ refName }) => refName).filter((name) => name !== "");
      throw new ImageError(
        `the layout ${this.#path} has no image ${this.#tag ?? ""}; it has ${names.slice(0, 20).join(", ") || "none with a name"}`,
      );
    }
    const [only] = entries;
    if (entries.length === 1 && only !== undefined) return this.manifest(only);
    if (this.#tag === undefined && distinct(entries) > 1) {
      const names = [...new Set(entries.map(({ refName }) => refName))].slice(0, 20).join(", ");
      throw new ImageError(
        `the layout ${this.#path} has several images; name one of ${names} as oci:${this.#path}:<name>`,
      );
    }
    return Buffer.from(JSON.stringify({ manifests: entries.map(asIndexEntry) }));
  }

  manifest({ digest }: Descriptor): Promise<Buffer> {
    return this.#whole(this.#blobPath(digest));
  }

  async *blob({ digest, sizeBytes }: Descriptor): AsyncIterable<Buffer> {
    const path = this.#blobPath(digest);
    for (let offset = 0; offset < sizeBytes; ) {
      const chunk = await this.#read(path, offset, Math.min(chunkBytes, sizeBytes - offset));
      if (chunk.length === 0) return;
      offset += chunk.length;
      yield chunk;
    }
    // A further byte means that the size is not that of the manifest.
    const more = await this.#read(path, sizeBytes, 1);
    if (more.length > 0) yield more;
  }

  async #whole(path: string): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for (let offset = 0; ; ) {
      const chunk = await this.#read(path, offset, chunkBytes);
      if (chunk.length === 0) return Buffer.concat(chunks);
      offset += chunk.length;
      if (offset > imageLimits.manifestBytes)
        throw new ImageError(`${path} is larger than ${imageLimits.manifestBytes} bytes`);
      chunks.push(chunk);
    }
  }

  #blobPath(digest: string): string {
    return `${this.#path}/blobs/${digest.replace(":", "/")}`;
  }
}

const distinct = (entries: readonly IndexEntry[]): number =>
  new Set(entries.map(({ refName }) => refName)).size;

const asIndexEntry = ({ mediaType, digest, sizeBytes, os, architecture, variant }: IndexEntry): object => ({
  mediaType,
  digest,
  size: sizeBytes,
  platform: { os, architecture, variant },
});
