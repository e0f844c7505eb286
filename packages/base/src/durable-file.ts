import { constants } from "node:fs";
import { type FileHandle, open, rename, rm, rmdir } from "node:fs/promises";
import { dirname } from "node:path";

/** Replaces a file atomically and durably: readers, also after a crash, see all of the old or of the new file. */
export async function writeDurably(path: string, data: string | Uint8Array, mode = 0o600): Promise<void> {
  const temporary = `${path}.tmp-${process.pid}-${sequence++}`;
  const handle = await open(temporary, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, mode);
  try {
    await handle.writeFile(data);
    await handle.datasync();
    await handle.close();
    await rename(temporary, path);
  } catch (error) {
    await handle.close().catch(() => undefined);
    await rm(temporary, { force: true });
    throw error;
  }
  await syncDirectory(dirname(path));
}
let sequence = 0;

/**
 * Creates a file. When it resolves, the content, the name and what `also` syncs are on the disk, with one wait instead
 * of writeDurably's two. A crash before that may leave a partial file, so use it only for content such as JSON, whose
 * reader notices that.
 */
export async function createDurably(
  path: string,
  data: string,
  mode = 0o600,
  also?: () => Promise<void>,
): Promise<void> {
  const handle = await open(path, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, mode);
  try {
    await handle.writeFile(data);
    await allDone([handle.datasync(), syncDirectory(dirname(path)), also?.()]);
    await handle.close();
  } catch (error) {
    await handle.close().catch(() => undefined);
    await rm(path, { force: true });
    throw error;
  }
}

/** Waits for all parts, even when one fails, so that none goes on afterwards; then throws the first failure. */
export async function allDone(parts: readonly (Promise<void> | undefined)[]): Promise<void> {
  for (const part of await Promise.allSettled(parts)) if (part.status === "rejected") throw part.reason;
}

/** Waits until the file's content is on the disk. */
export async function syncFile(path: string): Promise<void> {
  const handle = await open(path, constants.O_RDONLY);
  try {
    await handle.datasync();
  } finally {
    await handle.close();
  }
}

/** Makes names in a directory durable. */
export async function syncDirectory(path: string): Promise<void> {
  const handle = await open(path, constants.O_RDONLY);
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Removes the folder if it is empty; ignores a folder that is not empty or does not exist. */
export async function removeEmptyFolder(path: string): Promise<void> {
  await rmdir(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOTEMPTY" && error.code !== "ENOENT") throw error;
  });
}

/**
 * Opens a file to read it. Throws for a link (ELOOP) and for what is no regular file (EINVAL): a FIFO or a device would
 * block a thread of the process.
 */
export async function openPlainFile(path: string): Promise<FileHandle> {
  const handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  if ((await handle.stat()).isFile()) return handle;
  await handle.close();
  throw Object.assign(new Error(`${path} is not a regular file`), { code: "EINVAL" });
}

/** The parsed JSON of a file, or undefined when there is none. */
export async function readJsonFile(path: string): Promise<unknown> {
  try {
    await using file = await openPlainFile(path);
    return JSON.parse(await file.readFile("utf8"));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
