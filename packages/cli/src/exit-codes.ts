import { ClocheApiError, ClocheConnectionError, ClocheSdkError } from "@cloche/sdk";

/** What the command's exit code says; `cloche exec` passes the command's own through, and its own failures are 125. */
export const exitCodes = {
  done: 0,
  failed: 1,
  usage: 2,
  notReachable: 3,
  notFound: 4,
  notAllowed: 5,
  conflict: 6,
  execFailed: 125,
  interrupted: 130,
} as const;

/** A command was called wrongly; the message says what would be right. */
export class UsageError extends Error {}
/** The state or the name of a sandbox does not allow it. */
export class ConflictError extends Error {}
/** A name or id that matches nothing or several things. */
export class NotFoundError extends Error {}

export function exitCodeOf(error: unknown): number {
  if (error instanceof UsageError) return exitCodes.usage;
  if (error instanceof NotFoundError) return exitCodes.notFound;
  if (error instanceof ConflictError) return exitCodes.conflict;
  if (error instanceof ClocheConnectionError) return exitCodes.notReachable;
  if (error instanceof ClocheSdkError && error.code === "configuration") return exitCodes.notReachable;
  if (!(error instanceof ClocheApiError)) return exitCodes.failed;
  if (error.reason === "not_running") return exitCodes.conflict;
  switch (error.code) {
    case "not_found":
      return exitCodes.notFound;
    case "unauthenticated":
    case "permission_denied":
      return exitCodes.notAllowed;
    case "failed_precondition":
    case "already_exists":
    case "aborted":
      return exitCodes.conflict;
    default:
      return exitCodes.failed;
  }
}
