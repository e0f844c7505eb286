// Clones of files that share their blocks (FICLONE) on the pool, durable names, and room errors in public wording.
import { constants, copyFile, link, rm } from "node:fs/promises";
import { ClocheError } from "@cloche/protocol";

/** A clone in constant time; `to` must not exist. Never a slow copy: the pool can reflink, or the call throws. */
export async function reflink(from: string, to: string): Promise<void> {
  await copyFile(from, to, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE_FORCE);
}

/** Another name of the same file, replacing an older one. */
export async function hardLink(from: string, to: string): Promise<void> {
  await rm(to, { force: true });
  await link(from, to);
}

/** What a full pool looks like to Node. */
export function isNoRoom(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException | undefined)?.code;
  return code === "ENOSPC" || code === "EDQUOT";
}

/** Runs `body`; a full pool becomes resource_exhausted that says what to do. */
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
