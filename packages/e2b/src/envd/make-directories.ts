import { posix } from "node:path";
import type { EntryInfo } from "@cloche/protocol";
import type { SandboxDataPlane } from "@cloche/sdk";
import { E2bError } from "../e2b-error.ts";
import type { Account } from "./accounts.ts";
import { followed } from "./entry.ts";

/** Makes a directory and missing parents as root, and gives the new directories to the user. */
export async function makeDirectories(plane: SandboxDataPlane, path: string, owner: Account): Promise<void> {
  let topmost: string | undefined;
  for (let above = path; ; above = posix.dirname(above)) {
    const there = await followed(plane, above);
    if (there?.is_dir === true) break;
    if (there !== undefined)
      throw new E2bError("invalid_argument", `path is a file, not a directory: ${above}`);
    topmost = above;
  }
  if (topmost === undefined) return;
  await plane.files.mkdir(path, { parents: true });
  // Below this path there are only the directories that were just made.
  const json = { path: topmost, user: owner.uid, group: owner.gid, recursive: true };
  await plane.dataPlane.json<EntryInfo>("POST", "/v1/files/chown", { json });
}
