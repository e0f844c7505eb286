// The boundary: whatever was thrown as our errors, and those as Connect's.
import { ClocheError } from "@cloche/protocol";
import { connectCodes } from "@cloche/protocol/connect-codes";
import { ConnectError } from "@connectrpc/connect";
import { NativeError } from "../sys/native.ts";
import { CommandError } from "../sys/run.ts";

/** A joined error (work and its undo failed) answers with the first, which is why it failed. */
export function publicError(thrown: unknown): ClocheError {
  const first: unknown = thrown instanceof AggregateError ? thrown.errors[0] : thrown;
  if (first instanceof ClocheError && first.code !== "internal") return first;
  if (isOutOfSpace(first))
    return new ClocheError("resource_exhausted", "the host's disk pool is full", {
      resource: "disk",
      cause: thrown,
    });
  return ClocheError.from(first);
}

/** Whether a write that found no space is why, whoever made it: a file of ours, cloche-sys or a program that we ran. */
function isOutOfSpace(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  if (error instanceof AggregateError && error.errors.some(isOutOfSpace)) return true;
  if ((error as NodeJS.ErrnoException).code === "ENOSPC") return true;
  if (error instanceof NativeError && error.errno === "ENOSPC") return true;
  if (error instanceof CommandError && error.stderr.includes("No space left on device")) return true;
  return isOutOfSpace(error.cause);
}

export function connectErrorFrom(thrown: unknown): ConnectError {
  const error = publicError(thrown);
  return new ConnectError(error.message, connectCodes[error.code], undefined, undefined, thrown);
}
