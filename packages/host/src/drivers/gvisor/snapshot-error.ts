/** Maps a failed snapshot to the error that the user gets. */
import { CommandError } from "@cloche/base/run";
import { ClocheError } from "@cloche/protocol";

/** The sentry's message for an open deleted file that it cannot save. The users' root is fs/ of the disk. */
const deletedFile =
  /dentry\(\\?"disk(?:\/fs)?(\/[^"\\]*)\\?"\)\.(?:beforeSave: deleted|prepareSaveDead: only deleted)/;

/** Answers `error` itself if the user can do nothing about it. */
export function snapshotError(error: unknown): unknown {
  if (!(error instanceof CommandError)) return error;
  if (error.stderr.includes("No space left on device"))
    return new ClocheError("resource_exhausted", "the host's disk pool is full", {
      resource: "disk",
      cause: error,
    });
  // The agent reports such files before the snapshot; this catches a file deleted since.
  const path = deletedFile.exec(error.stderr)?.[1];
  if (path === undefined) return error;
  return new ClocheError(
    "failed_precondition",
    `the memory cannot be saved while a process holds a deleted file of the disk open: ${path}; close it`,
    { cause: error },
  );
}
