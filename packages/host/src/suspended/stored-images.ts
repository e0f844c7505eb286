/**
 * Suspended machines in storage: disk and memory at one instant, for any host of the cluster.
 *
 *   images/<key>/<file>    manifest of one file's chunks (checkpoint/manifest.ts), which are in packs
 *   images/<key>/image     description of the machine and its files, written last
 *
 * A key is used once, so a try that failed or came too late never shares a key with a good image. Only chunks of the disk that differ
 * from the template are stored and fetched; zeros take no space. Every chunk is verified by its SHA-256 before use.
 */
import { existsSync } from "node:fs";
import { readdir, readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { rfc3339, syncFile } from "@cloche/base";
import { ClocheError, type RandomBytes } from "@cloche/protocol";
import type { BlobStore } from "../blob/blob-store.ts";
import type { BaseOfCheckpoint, CheckpointArchive } from "../checkpoint/archive.ts";
import type { CheckpointNames } from "../checkpoint/checkpoint-names.ts";
import {
  type CheckpointHeader,
  type Manifest,
  ManifestError,
  type PackReference,
} from "../checkpoint/manifest.ts";
import type { TemplateBases } from "../checkpoint/template-bases.ts";
import {
  decodeDescription,
  descriptionFile,
  encodeDescription,
  type ImageDescription,
  ImageError,
  isFileName,
} from "./image-description.ts";
import type { StoredImageNote } from "../machines/stored-image-note.ts";

/** Files up to this size are stored in the description itself. */
const smallBytes = 16 * 1024;
const diskFile = "disk.ext4";

export interface StoredImagesOptions {
  /** The archive of the folder `images`. */
  archive: CheckpointArchive;
  blobs: BlobStore;
  templates: TemplateBases;
  names: Pick<CheckpointNames, "hold" | "release">;
  /** Generation of this host's lease. */
  generation: () => number;
  randomBytes: RandomBytes;
  nowMs(): number;
}

export interface SuspendedFiles {
  record: ImageDescription["record"];
  /** Path of the disk image. */
  disk: string;
  /** Directory with the memory's files, the class of hosts that can restore them, and the driver's memoryBase. */
  memory?: { dir: string; cpuClass: string; base?: string | undefined };
  withoutMemory?: string;
}

type WriteFile = (file: string, path: string, findBase?: () => Promise<BaseOfCheckpoint>) => Promise<void>;

export class StoredImages {
  readonly #options: StoredImagesOptions;

  constructor(options: StoredImagesOptions) {
    this.#options = options;
  }

  /** Stores an image; complete and durable when it resolves. Objects left by a failure or `signal` are swept. */
  async store(files: SuspendedFiles, signal: AbortSignal): Promise<StoredImageNote> {
    const key = this.#newKey(files.record);
    try {
      return await this.#store(key, files, signal);
    } catch (error) {
      await this.#options.names.release(`images/${key}`).catch(() => undefined);
      throw error;
    }
  }

  async #store(key: string, files: SuspendedFiles, signal: AbortSignal): Promise<StoredImageNote> {
    const { templates, names, blobs, nowMs } = this.#options;
    const name = `images/${key}`;
    const packs = new Map<string, PackReference>();
    const inherited = new Set<string>();
    const write: WriteFile = async (file, path, findBase) => {
      const base = findBase && (await this.#held(name, findBase));
      for (const pack of base?.manifest.packs ?? []) inherited.add(pack.id);
      const manifest = await this.#write(files, `${key}/${file}`, path, base, signal);
      for (const pack of manifest.packs) packs.set(pack.id, pack);
    };
    await write(diskFile, files.disk, () => templates.of(files.record.diskMb));
    const memory = files.memory && {
      cpuClass: files.memory.cpuClass,
      ...(await this.#storeMemory(files.memory, write)),
    };
    const own = [...packs.values()].filter(({ id }) => !inherited.has(id));
    await names.hold({ name, inherited: [...packs.values()].filter(({ id }) => inherited.has(id)), own });
    signal.throwIfAborted();
    const bytes = own.reduce((sum, pack) => sum + pack.bytes, 0);
    const description: ImageDescription = {
      version: 1,
      key,
      storedAtMs: nowMs(),
      bytes,
      record: files.record,
      disk: diskFile,
      ...(memory !== undefined && { memory }),
      ...(files.withoutMemory !== undefined && { withoutMemory: files.withoutMemory }),
    };
    await blobs.put(`images/${key}/${descriptionFile}`, encodeDescription(description));
    return { key, cpuClass: files.memory?.cpuClass ?? "", bytes, packs: [...packs.values()] };
  }

  /** The base, whose packs are not swept from now on. */
  async #held(name: string, findBase: () => Promise<BaseOfCheckpoint>): Promise<BaseOfCheckpoint> {
    const { names, templates } = this.#options;
    const base = await findBase();
    await names.hold({ name, inherited: base.manifest.packs }).catch(async (error: unknown) => {
      await templates.forget(base);
      throw error;
    });
    // The manifest of a replaced file would be taken for that of the new one.
    if ((await findBase()) !== base)
      throw new ClocheError("unavailable", "the base of an upload was replaced: it is tried again");
    return base;
  }

  async #storeMemory(
    { dir, base }: NonNullable<SuspendedFiles["memory"]>,
    write: WriteFile,
  ): Promise<{ files: string[]; small: Record<string, string> }> {
    const files: string[] = [];
    const small: Record<string, string> = {};
    for (const file of (await readdir(dir)).toSorted()) {
      if (file === diskFile) continue;
      if (!isFileName(file)) throw new Error(`a memory image has a file that cannot be stored: ${file}`);
      const path = join(dir, file);
      if ((await stat(path)).size <= smallBytes) small[file] = (await readFile(path)).toString("base64");
      else {
        files.push(file);
        const original = base === undefined ? "" : join(base, file);
        await write(
          file,
          path,
          existsSync(original) ? () => this.#options.templates.ofFile(original) : undefined,
        );
      }
    }
    return { files, small };
  }

  async #write(
    { record }: SuspendedFiles,
    id: string,
    path: string,
    base: BaseOfCheckpoint | undefined,
    signal: AbortSignal,
  ) {
    const { size, blocks } = await stat(path);
    const header: CheckpointHeader = {
      id,
      name: "",
      team_id: record.teamId,
      sandbox_id: record.id,
      created_at: rfc3339(this.#options.nowMs()),
      size_bytes: blocks * 512,
      runtime: record.runtime,
      disk_bytes: size,
      disk_mb: record.diskMb,
      running_services: [],
    };
    return await this.#options.archive.write(header, path, base, signal);
  }

  /** Hashes this host's template of that size, so that later fetches leave out its chunks. */
  async warm(diskMb: number): Promise<void> {
    await this.#options.templates.local(diskMb);
  }

  /** Reads an image's description. Throws failed_precondition if the image is missing or damaged. */
  async open(key: string): Promise<ImageDescription> {
    if (!isImageKey(key)) throw new ClocheError("invalid_argument", "image_key is no key of an image");
    const data = await this.#options.blobs.get(`images/${key}/${descriptionFile}`);
    if (data === undefined)
      throw new ClocheError("failed_precondition", "the suspended image is no longer in storage");
    return decodeDescription(data, key);
  }

  /** The note that the host which stored the image has on its record. */
  async noteOf({ key, disk, memory, bytes }: ImageDescription): Promise<StoredImageNote> {
    const packs = new Map<string, PackReference>();
    for (const file of [disk, ...(memory?.files ?? [])]) {
      const manifest = await this.#manifest(`${key}/${file}`);
      for (const pack of manifest.packs) packs.set(pack.id, pack);
    }
    return { key, cpuClass: memory?.cpuClass ?? "", bytes, packs: [...packs.values()] };
  }

  /** Fetches the disk to `target`, which must not exist. Durable; shares blocks with this host's template. */
  async fetchDisk(
    { key, disk, record }: ImageDescription,
    target: string,
    signal: AbortSignal,
  ): Promise<void> {
    const local = await this.#options.templates.local(record.diskMb);
    await this.#fetch(`${key}/${disk}`, target, { local, signal });
  }

  /** Writes the memory's small files into the empty directory `dir`: from them a driver tells whether it can restore the memory. */
  async writeSmall({ memory }: ImageDescription, dir: string): Promise<void> {
    for (const [file, content] of Object.entries(memory?.small ?? {})) {
      const path = join(dir, file);
      await writeFile(path, Buffer.from(content, "base64"), { mode: 0o600 });
      await syncFile(path);
    }
  }

  /** Fetches the memory's other files into `dir`. `base`: the driver's memoryBase; what its files have is taken from there. */
  async fetchMemory(
    { key, memory }: ImageDescription,
    dir: string,
    base: string | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    const { templates } = this.#options;
    for (const file of memory?.files ?? []) {
      const original = base === undefined ? "" : join(base, file);
      const local = existsSync(original) ? await templates.localFile(original) : undefined;
      await this.#fetch(`${key}/${file}`, join(dir, file), { local, signal });
      // What was cloned would not be what was hashed.
      if (local !== undefined && (await templates.localFile(original)) !== local)
        throw new ClocheError("unavailable", "the base of a download was replaced: it is tried again");
    }
  }

  async #fetch(
    id: string,
    target: string,
    how: Parameters<CheckpointArchive["materialise"]>[2],
  ): Promise<void> {
    const manifest = await this.#manifest(id);
    await this.#options.archive.materialise(manifest, target, how).catch(asImageError);
  }

  async #manifest(id: string): Promise<Manifest> {
    const manifest = await this.#options.archive.read(id).catch(asImageError);
    if (manifest === undefined) throw new ImageError("one of its files is missing");
    return manifest;
  }

  /** A new key. It has the host's generation, so that a host that was declared lost never writes the same key as its successor. */
  #newKey({ id, epoch }: ImageDescription["record"]): string {
    const { generation, randomBytes } = this.#options;
    const suffix = Buffer.from(randomBytes(6)).toString("hex");
    return `${id.replace(/^sbx-/, "")}-${generation()}-${epoch}-${suffix}`;
  }
}

function asImageError(error: unknown): never {
  if (error instanceof ManifestError) throw new ImageError("a part of it is not what was written", error);
  throw error;
}

export const isImageKey = (key: string): boolean => /^[a-z0-9]{20}-\d{1,10}-\d{1,10}-[0-9a-f]{12}$/.test(key);
