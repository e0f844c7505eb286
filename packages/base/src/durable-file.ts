import { constants } from "node:fs";
import { open, readFile, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";

/**
 * Replaces a file atomically and durably: a reader, or the next start after a crash, sees the old or the new one whole.
 * `also` makes durable what the new content speaks of, at the same time: before the content counts.
 */
export async function writeDurably(
  path: string,
  data: string | Uint8Array,
  mode = 0o600,
  also?: () => Promise<void>,
): Promise<void> {
  const temporary = `${path}.tmp-${process.pid}-${sequence++}`;
  const handle = await open(temporary, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, mode);
  try {
    await handle.writeFile(data);
    await allDone([handle.datasync(), also?.()]);
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

/** Waits for all of them, also when one fails: nothing of it goes on afterwards. */
async function allDone(parts: readonly (Promise<void> | undefined)[]): Promise<void> {
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

/** The parsed JSON of a file, or undefined when there is none. */
export async function readJsonFile(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
