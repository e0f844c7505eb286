import { statfs } from "node:fs/promises";
import { ClocheError } from "@cloche/protocol";

/** With less room below the pool and the database, neither can be written. */
const roomMin = 32 * 1_048_576;

/** Throws `unavailable` when the disk of the home is full. */
export async function requireRoom(home: string): Promise<void> {
  const { bavail, bsize } = await statfs(home);
  if (bavail * bsize >= roomMin) return;
  const left = Math.floor((bavail * bsize) / 1_048_576);
  throw new ClocheError(
    "unavailable",
    `the disk of the service is full (${left} MiB left): sandboxes cannot write until there is room`,
  );
}
