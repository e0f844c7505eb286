// What a snapshot that failed is to the user.
import { ClocheError } from "@cloche/protocol";
import { CommandError } from "../../sys/run.ts";

/** How the sentry refuses to save a file that was deleted while open; the users' root lies in fs/ of the disk. */
const DELETED_FILE =
  /dentry\(\\?"disk(?:\/fs)?(\/[^"\\]*)\\?"\)\.(?:beforeSave: deleted|prepareSaveDead: only deleted)/;

/** `error` itself where it is nothing that the user could change. */
export function snapshotError(error: unknown): unknown {
  if (!(error instanceof CommandError)) return error;
  if (error.stderr.includes("No space left on device"))
    return new ClocheError("resource_exhausted", "the host's disk pool is full", {
      resource: "disk",
      cause: error,
    });
  // The agent names such files beforehand; this is for one that was deleted in between.
  const path = DELETED_FILE.exec(error.stderr)?.[1];
  if (path === undefined) return error;
  return new ClocheError(
    "failed_precondition",
    `the memory cannot be saved while a process holds a deleted file of the disk open: ${path}; close it`,
    { cause: error },
  );
}
