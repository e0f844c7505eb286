// The last of the pool is kept for what must stay possible when it is full: records, undoing, deleting. What needs space is
// refused before it begins, so that nothing is left half done for want of a block. Sandboxes that write can still use it up.
import { statfs } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";

export const RESERVE_BYTES = 128 * 1024 * 1024;

/** Throws resource_exhausted where the pool, or the disk that its image lies on, has no more than the reserve. */
export async function requireSpace(poolDir: string): Promise<void> {
  for (const place of [poolDir, join(poolDir, "..")]) {
    const { bavail, bsize } = await statfs(place);
    if (bavail * bsize >= RESERVE_BYTES) continue;
    throw new ClocheError(
      "resource_exhausted",
      "the host's disk pool is full; delete sandboxes or checkpoints",
      {
        resource: "disk",
      },
    );
  }
}
