/** Our error codes as Connect's. In a file of its own, so that clients need not load Connect. */
import { Code } from "@connectrpc/connect";
import type { ErrorCode } from "./errors.ts";

export const connectCodes: Readonly<Record<ErrorCode, Code>> = {
  invalid_argument: Code.InvalidArgument,
  unauthenticated: Code.Unauthenticated,
  permission_denied: Code.PermissionDenied,
  not_found: Code.NotFound,
  already_exists: Code.AlreadyExists,
  failed_precondition: Code.FailedPrecondition,
  aborted: Code.Aborted,
  deadline_exceeded: Code.DeadlineExceeded,
  resource_exhausted: Code.ResourceExhausted,
  unimplemented: Code.Unimplemented,
  unavailable: Code.Unavailable,
  internal: Code.Internal,
  canceled: Code.Canceled,
};
