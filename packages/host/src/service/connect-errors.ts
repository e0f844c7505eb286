// The boundary: our errors as Connect's.
import { ClocheError, type ErrorCode } from "@cloche/protocol";
import { Code, ConnectError } from "@connectrpc/connect";

const connectCodes: Record<ErrorCode, Code> = {
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

/** A joined error (work and its undo failed) answers with the first, which is why it failed. */
export function connectErrorFrom(thrown: unknown): ConnectError {
  const first = thrown instanceof AggregateError ? thrown.errors[0] : thrown;
  const error = ClocheError.from(first);
  return new ConnectError(error.message, connectCodes[error.code], undefined, undefined, thrown);
}
