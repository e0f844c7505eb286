/** Reflink clones on the pool (FICLONE), hard links, and public errors for a full pool. */
import { constants, copyFile, link, rm } from "node:fs/promises";
import { ClocheError } from "@cloche/protocol";

/** Clones a file in constant time; `to` must not exist. Throws if the pool cannot reflink, instead of copying slowly. */
export async function reflink(from: string, to: string): Promise<void> {
  await copyFile(from, to, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE_FORCE);
}

/** Gives the file a second name, and replaces an older file of that name. */
export async function hardLink(from: string, to: string): Promise<void> {
  await rm(to, { force: true });
  await link(from, to);
}

/** Whether an error of Node means a full pool. */
export function isNoRoom(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException | undefined)?.code;
  return code === "ENOSPC" || code === "EDQUOT";
}

/** Runs `body`; turns a full pool into resource_exhausted, which says what to do. */
export async function needingRoom<T>(what: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    if (!isNoRoom(error)) throw error;
    throw new ClocheError(
      "resource_exhausted",
      `no room on the host's disk for ${what}; delete sandboxes or checkpoints and try again`,
      { cause: error, resource: "disk" },
    );
  }
}
