/** Maps thrown errors to ClocheError, and ClocheError to Connect's errors. */
import { CommandError } from "@cloche/base/run";
import { ClocheError } from "@cloche/protocol";
import { connectCodes } from "@cloche/protocol/connect-codes";
import { ConnectError } from "@connectrpc/connect";
import { NativeError } from "../sys/native.ts";

/** Of a joined error (a step and its undo failed), the first is public: it is the cause. */
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

/** Whether the cause is a full disk, found by Node, cloche-sys or a program that we ran. */
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
