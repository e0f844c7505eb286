import type { ErrorCode, ErrorReason } from "@cloche/protocol";
import type { FetchResponse } from "./fetch.ts";

/**
 * Errors that the client finds itself:
 * - `unreachable`: no server answers at the address; nothing was done.
 * - `untrusted`: the certificate is not valid here: an unknown authority, another name, or a wrong clock.
 * - `connection_lost`: the connection ended before the answer; the request may have been carried out.
 * - `configuration`: no service or no API key is named, or a setting is wrong.
 * - `unsupported_runtime`: this JavaScript runtime is too old.
 * - `usage`: an argument that no service could accept.
 * - `invalid_answer`: the server that answered is no Cloche service.
 * - `wait_failed`: the sandbox cannot reach the awaited state any more.
 * - `wait_timeout`: the sandbox did not reach the awaited state in time.
 */
export type ClientErrorCode =
  | "unreachable"
  | "untrusted"
  | "connection_lost"
  | "configuration"
  | "unsupported_runtime"
  | "usage"
  | "invalid_answer"
  | "wait_failed"
  | "wait_timeout";

/** Base of all errors of the SDK, except that an abort throws the signal's reason. `message` says what to do. */
export class ClocheSdkError extends Error {
  /** Stable, for programs: `error.code === "not_found"`. */
  readonly code: ErrorCode | ClientErrorCode | "unknown";

  constructor(
    message: string,
    options: ErrorOptions & { code?: ErrorCode | ClientErrorCode | "unknown" } = {},
  ) {
    const { code = "usage", ...rest } = options;
    super(message, rest);
    // Set explicitly, because a minifier renames classes.
    this.name = "ClocheSdkError";
    this.code = code;
  }
}

/** The service answered with an error. `message` names the field and says what would be right. */
export class ClocheApiError extends ClocheSdkError {
  /** The service's code; `unknown` if a proxy in between answered. */
  declare readonly code: ErrorCode | "unknown";
  /** HTTP status. */
  readonly status: number;
  /** Id of the request, which is in the service's log lines. */
  readonly requestId: string | undefined;
  /**
   * The case of `code`, if programs may handle cases differently: `is_directory`, `not_directory`, `not_empty`,
   * `not_regular_file`, `in_use`, `no_such_user`, `no_such_group`, `too_large`, `limit_reached`, `disk_full`,
   * `not_running`, `nothing_listens`, `process_ended`, `input_closed`, `no_terminal`, `needs_unknown`, `needs_cycle`,
   * `needs_failed`. Undefined: the code has no cases, or the error is from the gateway.
   */
  readonly reason: ErrorReason | (string & {}) | undefined;
  /** Further details for programs, as sent by the service. Default empty. */
  readonly details: readonly unknown[];
  /** Seconds to wait before trying again, if the service gave a time. */
  readonly retryAfterSeconds: number | undefined;

  constructor(
    message: string,
    fields: {
      code: ErrorCode | "unknown";
      status: number;
      requestId?: string | undefined;
      details?: readonly unknown[] | undefined;
      retryAfterSeconds?: number | undefined;
    },
  ) {
    super(message, { code: fields.code });
    this.name = "ClocheApiError";
    this.status = fields.status;
    this.requestId = fields.requestId;
    this.details = fields.details ?? [];
    this.reason = reasonIn(this.details);
    this.retryAfterSeconds = fields.retryAfterSeconds;
  }
}

function reasonIn(details: readonly unknown[]): string | undefined {
  const reasons = details.map((detail) => (detail as { reason?: unknown } | null)?.reason);
  return reasons.find((reason) => typeof reason === "string");
}

/** No answer: the address does not resolve, no server listens, the certificate is not trusted, or the connection was lost. */
export class ClocheConnectionError extends ClocheSdkError {
  /** Why no answer came. */
  declare readonly code: "unreachable" | "untrusted" | "connection_lost";

  constructor(
    message: string,
    options: ErrorOptions & { code?: "unreachable" | "untrusted" | "connection_lost" } = {},
  ) {
    super(message, { code: "connection_lost", ...options });
    this.name = "ClocheConnectionError";
  }
}

/** A wait for a state failed: it took too long, or the sandbox is in ERROR or deleted. */
export class ClocheWaitError extends ClocheSdkError {
  /** Whether more time would help. */
  declare readonly code: "wait_failed" | "wait_timeout";

  constructor(message: string, options: ErrorOptions & { code?: "wait_failed" | "wait_timeout" } = {}) {
    super(message, { code: "wait_failed", ...options });
    this.name = "ClocheWaitError";
  }
}

/** Statuses of a full place, a rate or a size. */
const exhausted = [413, 429, 431, 507];
const codesByStatus: Record<number, ErrorCode> = {
  400: "invalid_argument",
  401: "unauthenticated",
  403: "permission_denied",
  404: "not_found",
  408: "deadline_exceeded",
  409: "failed_precondition",
  501: "unimplemented",
  503: "unavailable",
};

/** The error of an answer other than 2xx, also of a proxy in between whose answer has another format. */
export async function apiErrorOf(response: FetchResponse): Promise<ClocheApiError> {
  const text = await response.text().catch(() => "");
  let body: { code?: unknown; message?: unknown; details?: unknown } = {};
  try {
    body = (JSON.parse(text) ?? {}) as typeof body;
  } catch {
    // Another format: only the status is used.
  }
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  return new ClocheApiError(
    typeof body.message === "string" ? body.message : `HTTP ${response.status} ${response.statusText}`.trim(),
    {
      code:
        typeof body.code === "string"
          ? (body.code as ErrorCode)
          : (codesByStatus[response.status] ??
            (exhausted.includes(response.status) ? "resource_exhausted" : "unknown")),
      status: response.status,
      requestId: response.headers.get("x-request-id") ?? undefined,
      details: Array.isArray(body.details) ? body.details : undefined,
      retryAfterSeconds: Number.isFinite(retryAfter) ? retryAfter : undefined,
    },
  );
}
