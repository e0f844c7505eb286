/**
 * Disk images in the blob store. Owns the blobs `checkpoints/<id>` (manifests) and `packs/<pack id>` (compressed chunks). The
 * option `folder` puts the manifests elsewhere.
 *
 *   image on the pool ──write──▶ packs, then the manifest (only now visible) ──materialise──▶ image
 *
 * A checkpoint that shares blocks with a base (its template, or the checkpoint before it) stores only the chunks that differ,
 * which the extent maps show without reading. A pack is kept while any manifest names it. A write that a crash cut off leaves packs
 * that no manifest names; `sweep` removes them when they are a day old. Younger packs may belong to an upload of another host.
 */
import { type FileHandle, open, readFile, rm, writeFile } from "node:fs/promises";
import { promisify } from "node:util";
import { constants, zstdCompress, zstdDecompress } from "node:zlib";
import { openPlainFile } from "@cloche/base";
import { ClocheError, type RandomBytes } from "@cloche/protocol";
import { webcrypto } from "node:crypto";
import type { BlobStore } from "../blob/blob-store.ts";
import { requireSpace } from "../pool/reserve.ts";
import type { Native } from "../sys/native.ts";
import {
  type CheckpointHeader,
  type Chunk,
  chunkBytes,
  decodeManifest,
  encodeManifest,
  type Manifest,
  type ManifestDraft,
  ManifestError,
  type PackReference,
} from "./manifest.ts";

const packBytes = 32 * 1024 * 1024;
const chunksAtOnce = 4;
/** More than chunks written at once, because a fetch mostly waits for the store. */
const readsAtOnce = 16;
/** A pack or template's manifest that is not named is kept this long after it was written. */
export const unnamedKeptMs = 24 * 3_600_000;
const compressionLevel = 1;
const packMagic = Buffer.from("CLOCHEPK\x01\x00\x00\x00\x00\x00\x00\x00", "latin1");

const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

/** A base on the same pool. `image` must be unchanged since `manifest` was written. */
export interface BaseOfCheckpoint {
  image: string;
  manifest: Manifest;
}

export interface ArchiveOptions {
  blobs: BlobStore;
  native: Native;
  randomBytes: RandomBytes;
  nowMs(): number;
  /** Folder of the manifests; default `checkpoints`. */
  folder?: "checkpoints" | "images";
  /** The pool, on which images are rebuilt. */
  poolDir: string;
  /** Throws when the pool, or the disk below its image, is nearly full. */
  requireSpace?: (poolDir: string) => Promise<void>;
}

/** An image on this host's pool, and the SHA-256 of each of its chunks; undefined: all zeros. */
export interface LocalImage {
  image: string;
  hashes: readonly (Buffer | undefined)[];
}

export class CheckpointArchive {
  readonly #options: ArchiveOptions;
  /** Packs of writes under way, own and inherited. They are neither swept nor deleted. */
  readonly #writing = new PinnedPacks();
  readonly #folder: string;

  constructor(options: ArchiveOptions) {
    this.#options = options;
    this.#folder = options.folder ?? "checkpoints";
  }

  /** Stores `image`; visible and durable when it resolves. `signal` stops it between chunks. */
  async write(
    header: CheckpointHeader,
    image: string,
    base: BaseOfCheckpoint | undefined,
    signal: AbortSignal,
  ): Promise<Manifest> {
    const marks = await this.#chunkMarks(image, base?.image);
    const expected = Math.ceil(header.disk_bytes / chunkBytes);
    if (marks.length !== expected)
      throw new Error(`image of ${header.id} has ${marks.length} chunks, not ${expected}`);
    const manifest: ManifestDraft = { header, packs: [], chunks: Array.from({ length: marks.length }) };
    if (base !== undefined) await inheritChunks(manifest, base.manifest, marks);
    const inherited = manifest.packs.map((pack) => pack.id);
    for (const id of inherited) this.#writing.pin(id);
    const packs = new PackWriter(this.#options, manifest, this.#writing);
    const file = await openPlainFile(image);
    let isNamed = false;
    try {
      const due = dataChunks(marks, manifest);
      for (let at = 0; at < due.length; at += chunksAtOnce) {
        signal.throwIfAborted();
        const batch = due.slice(at, at + chunksAtOnce);
        const ready = await Promise.all(batch.map((index) => prepareChunk(file, index, header.disk_bytes)));
        for (const [position, chunk] of ready.entries()) {
          if (chunk !== undefined) await packs.add(batch[position] as number, chunk);
        }
      }
      await packs.flush();
      const data = await encodeManifest(manifest);
      // A manifest that nobody could read must not be stored, and none of its packs kept.
      const readable = await decodeManifest(data);
      isNamed = true;
      await this.#options.blobs.put(this.#manifestKey(header.id), data);
      return readable;
    } catch (error) {
      // A failed write of the manifest may have succeeded in the store; then its packs are needed.
      if (!isNamed) await packs.discard();
      throw error;
    } finally {
      packs.release();
      for (const id of inherited) this.#writing.unpin(id);
      await file.close();
    }
  }

  /** The manifest in storage; undefined: not visible. Throws ManifestError when it is damaged. */
  async read(id: string): Promise<Manifest | undefined> {
    const data = await this.#options.blobs.get(this.#manifestKey(id));
    if (data === undefined) return undefined;
    const manifest = await decodeManifest(data);
    if (manifest.header.id !== id) throw new ManifestError("it is another checkpoint's");
    return manifest;
  }

  /** Ids of all manifests, including those of templates. */
  async list(): Promise<string[]> {
    return (await this.#manifests()).map(({ id }) => id);
  }

  /** Ids of the manifests old enough to be swept. */
  async listOld(): Promise<string[]> {
    return (await this.#manifests()).filter((entry) => this.#isOld(entry)).map(({ id }) => id);
  }

  #manifestKey(id: string): string {
    // The folder `images` has a manifest for each file of an image: `<key>/<file>`.
    const isId = this.#folder === "images" ? /^[a-z0-9-]{1,64}\/[a-z0-9._-]{1,64}$/ : /^[a-z0-9-]{1,64}$/;
    if (!isId.test(id)) throw new ClocheError("not_found", `checkpoint ${id} does not exist`);
    return `${this.#folder}/${id}`;
  }

  async #manifests(): Promise<{ id: string; modifiedAtMs: number }[]> {
    const entries = await this.#options.blobs.list(`${this.#folder}/`);
    return entries.map(({ key, modifiedAtMs }) => ({ id: key.slice(this.#folder.length + 1), modifiedAtMs }));
  }

  /** A blob is not old if the store does not know its time (Infinity): it is kept. */
  #isOld({ modifiedAtMs }: { modifiedAtMs: number }): boolean {
    return this.#options.nowMs() - modifiedAtMs > unnamedKeptMs;
  }

  /**
   * Rebuilds the image at `target` (which must not exist), verifies every chunk and makes it durable. Chunks that `local` has are
   * taken from there and share its blocks. Leaves nothing when it throws: a manifest of some KiB may stand for more than the pool
   * has, so it ends before it takes the pool's reserve. `signal` stops it between chunks.
   */
  async materialise(
    manifest: Manifest,
    target: string,
    { local, signal }: { local?: LocalImage | undefined; signal?: AbortSignal } = {},
  ): Promise<void> {
    const { disk_bytes: bytes } = manifest.header;
    const { poolDir, requireSpace: spaceIn = requireSpace } = this.#options;
    const known = local?.hashes.length === manifest.chunkCount ? local : undefined;
    if (known !== undefined) await this.#options.native.clone(known.image, target);
    const file = await open(target, known === undefined ? "wx" : "r+", 0o600);
    try {
      await file.truncate(bytes);
      let first = 0;
      for await (const chunks of manifest.chunks()) {
        const due = chunks.flatMap((chunk, position) => {
          const index = first + position;
          return isAlike(chunk?.sha256, known?.hashes[index]) ? [] : [{ chunk, index }];
        });
        first += chunks.length;
        for (let at = 0; at < due.length; at += readsAtOnce) {
          signal?.throwIfAborted();
          await spaceIn(poolDir);
          await Promise.all(
            due.slice(at, at + readsAtOnce).map(async ({ chunk, index }) => {
              const raw =
                chunk === undefined
                  ? zeros.subarray(0, Math.min(chunkBytes, bytes - index * chunkBytes))
                  : await this.#readChunk(manifest, chunk, index);
              await file.write(raw, 0, raw.length, index * chunkBytes);
            }),
          );
        }
      }
      await file.datasync();
    } catch (error) {
      await rm(target, { force: true });
      throw error;
    } finally {
      await file.close();
    }
  }

  /** Removes the manifest, then its packs that none of `others` names. Answers the bytes freed in storage. */
  async delete(manifest: Manifest, others: Iterable<readonly PackReference[]>): Promise<number> {
    const { blobs } = this.#options;
    const key = this.#manifestKey(manifest.header.id);
    const [entry] = await blobs.list(key);
    await blobs.delete(key);
    const kept = new Set([...others].flatMap((packs) => packs.map((pack) => pack.id)));
    let freed = entry?.bytes ?? 0;
    for (const pack of manifest.packs) {
      if (kept.has(pack.id) || this.#writing.has(pack.id)) continue;
      await blobs.delete(packKey(pack.id));
      freed += pack.bytes;
    }
    return freed;
  }

  /** Removes only the manifest. Its packs are swept once no manifest names them. */
  async forget(id: string): Promise<void> {
    await this.#options.blobs.delete(this.#manifestKey(id));
  }

  /**
   * Removes packs that are a day old and named neither by `known` nor by a write under way: a killed service left them. Calls `known`
   * after the packs are listed, so that packs named meanwhile are kept. Answers how many were removed.
   */
  async sweep(known: () => Promise<Iterable<readonly PackReference[]>>): Promise<number> {
    const { blobs } = this.#options;
    const packs = await blobs.list("packs/");
    const kept = new Set([...(await known())].flatMap((named) => named.map((pack) => pack.id)));
    let removed = 0;
    for (const pack of packs) {
      const id = pack.key.slice("packs/".length);
      if (kept.has(id) || this.#writing.has(id) || !this.#isOld(pack)) continue;
      await blobs.delete(pack.key);
      removed += 1;
    }
    return removed;
  }

  /** Hashes each chunk of `image`, which must not change. Reads everything except holes. */
  async localImage(image: string): Promise<LocalImage> {
    const marks = await this.#chunkMarks(image, undefined);
    const hashes = Array.from<Buffer | undefined>({ length: marks.length });
    const file = await openPlainFile(image);
    try {
      const { size } = await file.stat();
      const due = [...marks.keys()].filter((index) => marks[index] === 0x64); // "d"
      for (let at = 0; at < due.length; at += chunksAtOnce) {
        await Promise.all(
          due.slice(at, at + chunksAtOnce).map(async (index) => {
            const raw = await readRaw(file, index, size);
            if (!isZero(raw)) hashes[index] = await sha256(raw);
          }),
        );
      }
    } finally {
      await file.close();
    }
    return { image, hashes };
  }

  async #chunkMarks(image: string, base: string | undefined): Promise<Buffer> {
    const suffix = Buffer.from(this.#options.randomBytes(4)).toString("hex");
    const out = `${image}.${suffix}.chunks`;
    try {
      await writeFile(out, "");
      await this.#options.native.chunkMap(image, base, out, chunkBytes);
      return await readFile(out);
    } finally {
      await rm(out, { force: true });
    }
  }

  async #readChunk(manifest: Manifest, chunk: Chunk, index: number): Promise<Buffer> {
    const pack = manifest.packs[chunk.pack] as PackReference;
    const range = { offset: chunk.offset, length: chunk.storedBytes };
    const stored = await this.#options.blobs.get(packKey(pack.id), range);
    if (stored?.length !== chunk.storedBytes)
      throw new ManifestError(`pack ${pack.id} is missing or truncated`);
    const raw = await decompress(stored, { maxOutputLength: chunkBytes }).catch((error: unknown) => {
      throw new ManifestError(`chunk ${index} does not unpack`, error);
    });
    const expected = Math.min(chunkBytes, manifest.header.disk_bytes - index * chunkBytes);
    if (raw.length !== expected || !(await sha256(raw)).equals(chunk.sha256)) {
      throw new ManifestError(`chunk ${index} is not what was written`);
    }
    return raw;
  }
}

class PinnedPacks {
  readonly #counts = new Map<string, number>();

  pin(id: string): void {
    this.#counts.set(id, (this.#counts.get(id) ?? 0) + 1);
  }

  unpin(id: string): void {
    const count = (this.#counts.get(id) ?? 0) - 1;
    if (count > 0) this.#counts.set(id, count);
    else this.#counts.delete(id);
  }

  has(id: string): boolean {
    return this.#counts.has(id);
  }
}

interface PreparedChunk {
  stored: Buffer;
  sha256: Buffer;
}

/** Collects compressed chunks into packs and uploads each when it is full. */
class PackWriter {
  readonly #options: ArchiveOptions;
  readonly #manifest: ManifestDraft;
  readonly #writing: PinnedPacks;
  readonly #own: PackReference[] = [];
  #parts: Buffer[] = [];
  #bytes = 0;
  #current: PackReference | undefined;

  constructor(options: ArchiveOptions, manifest: ManifestDraft, writing: PinnedPacks) {
    this.#options = options;
    this.#manifest = manifest;
    this.#writing = writing;
  }

  async add(index: number, chunk: PreparedChunk): Promise<void> {
    if (this.#current === undefined) this.#begin();
    const pack = this.#manifest.packs.length - 1;
    this.#manifest.chunks[index] = {
      pack,
      offset: this.#bytes,
      storedBytes: chunk.stored.length,
      sha256: chunk.sha256,
    };
    this.#parts.push(chunk.stored);
    this.#bytes += chunk.stored.length;
    if (this.#bytes >= packBytes) await this.flush();
  }

  async flush(): Promise<void> {
    if (this.#current === undefined) return;
    this.#current.bytes = this.#bytes;
    await this.#options.blobs.put(packKey(this.#current.id), Buffer.concat(this.#parts, this.#bytes));
    this.#current = undefined;
    this.#parts = [];
  }

  /** After a failure: deletes the uploaded packs, which no manifest names. */
  async discard(): Promise<void> {
    for (const pack of this.#own) await this.#options.blobs.delete(packKey(pack.id)).catch(() => undefined);
  }

  release(): void {
    for (const pack of this.#own) this.#writing.unpin(pack.id);
  }

  #begin(): void {
    const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789";
    const suffix = Array.from(this.#options.randomBytes(20), (byte) => alphabet[byte % 36]).join("");
    this.#current = { id: `pack-${suffix}`, bytes: 0 };
    this.#own.push(this.#current);
    this.#writing.pin(this.#current.id);
    this.#manifest.packs.push(this.#current);
    this.#parts = [packMagic];
    this.#bytes = packMagic.length;
  }
}

/** Takes chunks whose blocks the base shares from the base's packs. Names only packs that are needed. */
async function inheritChunks(manifest: ManifestDraft, base: Manifest, marks: Buffer): Promise<void> {
  const newIndex = new Map<number, number>();
  let first = 0;
  for await (const chunks of base.chunks()) {
    for (const [position, chunk] of chunks.entries()) {
      if (chunk === undefined || marks[first + position] !== 0x3d) continue; // "="
      let pack = newIndex.get(chunk.pack);
      if (pack === undefined) {
        pack = manifest.packs.push({ ...(base.packs[chunk.pack] as PackReference) }) - 1;
        newIndex.set(chunk.pack, pack);
      }
      manifest.chunks[first + position] = { ...chunk, pack };
    }
    first += chunks.length;
  }
}

/** Chunks to read: own data, and chunks shared with the base that its table has as zeros. */
function dataChunks(marks: Buffer, manifest: ManifestDraft): number[] {
  const due: number[] = [];
  for (let index = 0; index < marks.length; index += 1) {
    if (marks[index] === 0x64 || (marks[index] === 0x3d && manifest.chunks[index] === undefined))
      due.push(index); // "d", "="
  }
  return due;
}

/** Reads, hashes and compresses one chunk; undefined: it is all zeros. */
async function prepareChunk(
  file: FileHandle,
  index: number,
  diskBytes: number,
): Promise<PreparedChunk | undefined> {
  const raw = await readRaw(file, index, diskBytes);
  if (isZero(raw)) return undefined;
  const [stored, digest] = await Promise.all([
    // With the size zstd takes memory for a chunk only. More of it makes the service collect its garbage, up to 30 ms each time.
    compress(raw, {
      pledgedSrcSize: raw.length,
      params: { [constants.ZSTD_c_compressionLevel]: compressionLevel },
    }),
    sha256(raw),
  ]);
  return { stored, sha256: digest };
}

async function readRaw(file: FileHandle, index: number, bytes: number): Promise<Buffer> {
  const length = Math.min(chunkBytes, bytes - index * chunkBytes);
  const raw = Buffer.alloc(length);
  const { bytesRead } = await file.read(raw, 0, length, index * chunkBytes);
  if (bytesRead !== length) throw new Error(`the image ended in chunk ${index}`);
  return raw;
}

const isAlike = (one: Buffer | undefined, other: Buffer | undefined): boolean =>
  one === undefined || other === undefined ? one === other : one.equals(other);

const zeros = Buffer.alloc(chunkBytes);
const isZero = (raw: Buffer): boolean => raw.equals(zeros.subarray(0, raw.length));

async function sha256(data: Buffer): Promise<Buffer> {
  return Buffer.from(await webcrypto.subtle.digest("SHA-256", data as BufferSource));
}

const packKey = (id: string): string => `packs/${id}`;
