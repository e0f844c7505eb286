/**
 * Reserves the last part of the pool for work that must stay possible when it is full: records, undo, deletion. Operations that
 * need space are refused before they begin, so that none is left half done. Sandboxes that write can still use up the reserve.
 */
import { statfs } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";

export const reserveBytes = 128 * 1024 * 1024;

/** Throws resource_exhausted if the pool, or the disk below its image, has less free space than the reserve. */
export async function requireSpace(poolDir: string): Promise<void> {
  for (const place of [poolDir, join(poolDir, "..")]) {
    const { bavail, bsize } = await statfs(place);
    if (bavail * bsize >= reserveBytes) continue;
    throw new ClocheError(
      "resource_exhausted",
      "the host's disk pool is full; delete sandboxes or checkpoints",
      {
        resource: "disk",
      },
    );
  }
}
