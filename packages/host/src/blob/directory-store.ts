/**
 * Blobs as files of a directory. A blob appears by rename after fsync. A write that was cut off leaves a `.part` file, which an open
 * removes when it is a day old; a younger one may belong to a write under way.
 */
import { constants } from "node:fs";
import { type FileHandle, mkdir, open, readdir, rename, rm, stat } from "node:fs/promises";
import { randomBytes } from "node:crypto";
import { dirname, join, relative } from "node:path";
import { openPlainFile, syncDirectory } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { type BlobEntry, type BlobStore, checkKey } from "./blob-store.ts";
import { wholeBytesMax } from "./bounded-fetch.ts";

const partSuffix = ".part";
const partKeptMs = 24 * 3_600_000;

export async function openDirectoryStore(folder: string, nowMs = Date.now()): Promise<BlobStore> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const file of await filesBelow(folder)) {
    if (!file.endsWith(partSuffix)) continue;
    const path = join(folder, file);
    const modifiedAtMs = (await stat(path).catch(() => undefined))?.mtimeMs ?? Infinity;
    if (modifiedAtMs < nowMs - partKeptMs) await rm(path, { force: true });
  }
  return new DirectoryStore(folder);
}

class DirectoryStore implements BlobStore {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async put(key: string, data: Uint8Array): Promise<void> {
    const path = this.#path(key);
    const part = `${path}.${randomBytes(6).toString("hex")}${partSuffix}`;
    await reported(async () => {
      await this.#makeFolder(dirname(path));
      try {
        await writeWhole(part, data);
        await rename(part, path);
      } catch (error) {
        await rm(part, { force: true });
        throw error;
      }
      await syncDirectory(dirname(path));
    });
  }

  async get(key: string, range?: { offset: number; length: number }): Promise<Uint8Array | undefined> {
    return reported(async () => {
      let handle: FileHandle;
      try {
        handle = await openPlainFile(this.#path(key));
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
        throw error;
      }
      try {
        if (range === undefined) {
          const { size } = await handle.stat();
          if (size > wholeBytesMax)
            throw new ClocheError(
              "failed_precondition",
              `an object of ${size} bytes in storage is too large`,
            );
          return await handle.readFile();
        }
        const buffer = Buffer.alloc(range.length);
        const { bytesRead } = await handle.read(buffer, 0, range.length, range.offset);
        return buffer.subarray(0, bytesRead);
      } finally {
        await handle.close();
      }
    });
  }

  async delete(key: string): Promise<void> {
    await reported(() => rm(this.#path(key), { force: true }));
  }

  async list(prefix: string): Promise<BlobEntry[]> {
    return reported(async () => {
      const keys = (await filesBelow(this.#folder)).filter(
        (key) => key.startsWith(prefix) && !key.endsWith(partSuffix),
      );
      const entries = await Promise.all(
        keys.map((key) =>
          stat(join(this.#folder, key)).then(
            ({ size, mtimeMs }) => ({ key, bytes: size, modifiedAtMs: mtimeMs }),
            () => undefined, // deleted meanwhile
          ),
        ),
      );
      return entries.filter((entry) => entry !== undefined).sort((a, b) => (a.key < b.key ? -1 : 1));
    });
  }

  #path(key: string): string {
    checkKey(key);
    return join(this.#folder, key);
  }

  /** Makes a folder, so that a new one survives a power cut too. */
  async #makeFolder(folder: string): Promise<void> {
    const first = await mkdir(folder, { recursive: true, mode: 0o700 });
    if (first !== undefined) await syncDirectory(dirname(first));
  }
}

async function writeWhole(path: string, data: Uint8Array): Promise<void> {
  const handle = await open(path, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
  try {
    await handle.writeFile(data);
    await handle.datasync();
  } finally {
    await handle.close();
  }
}

async function filesBelow(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)));
}

async function reported<T>(body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOSPC" || code === "EDQUOT") {
      throw new ClocheError("resource_exhausted", "checkpoint storage is full", {
        cause: error,
        resource: "disk",
      });
    }
    if (code === undefined) throw error;
    throw new ClocheError("unavailable", "checkpoint storage cannot be used", { cause: error });
  }
}
