import { constants } from "node:fs";
import { open, readFile, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";

/** Replaces a file atomically and durably: a reader, or the next start after a crash, sees the old or the new one whole. */
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
