import { ClocheConnectionError } from "./errors.ts";
import { remedyOf } from "#platform-errors";

/** The error of a request to `host` (with port) that failed without an answer. */
export function noAnswer(cause: unknown, host: string): ClocheConnectionError {
  const inner = innermost(cause);
  const { code, message } =
    inner instanceof Error ? (inner as Error & { code?: unknown }) : { message: String(inner) };
  const [kind, remedy] = remedyOf(`${String(code)} ${message}`);
  return new ClocheConnectionError(`no answer from ${host}: ${message || String(code)}; ${remedy}`, {
    cause,
    code: kind,
  });
}

/** The innermost cause: fetch says only "fetch failed". */
function innermost(error: unknown): unknown {
  let inner = error;
  while (inner instanceof Error && inner.cause instanceof Error) inner = inner.cause;
  return inner instanceof AggregateError && inner.errors[0] instanceof Error ? inner.errors[0] : inner;
}
