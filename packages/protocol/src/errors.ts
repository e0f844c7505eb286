/**
 * The one error type of the service. `message` is public: it names the wrong field and says what would be right.
 * Details that must not leave the process (host paths, stderr, stacks) go into `cause`, which is logged and never sent.
 */
export const errorCodes = [
  "invalid_argument",
  "unauthenticated",
  "permission_denied",
  "not_found",
  "already_exists",
  "failed_precondition",
  "aborted",
  "deadline_exceeded",
  "resource_exhausted",
  "unimplemented",
  "unavailable",
  "internal",
  "canceled",
] as const;
/** The code of an error that the service answers. */
export type ErrorCode = (typeof errorCodes)[number];

/** Narrows `resource_exhausted`: a body too large (413), a rate or quota (429), a full disk (507). */
export type ExhaustedResource = "body" | "quota" | "disk";

/**
 * Reasons separate errors of the same code that programs handle differently; in `details` of the body as `{ "reason": …
 * }`. The OpenAPI document of the data plane describes each.
 */
export const errorReasons = [
  "is_directory",
  "not_directory",
  "not_empty",
  "not_regular_file",
  "in_use",
  "no_such_user",
  "no_such_group",
  "too_large",
  "limit_reached",
  "disk_full",
  "not_running",
  "nothing_listens",
  "process_ended",
  "input_closed",
  "no_terminal",
  "needs_unknown",
  "needs_cycle",
  "needs_failed",
] as const;
/** Which case of a code an error is. */
export type ErrorReason = (typeof errorReasons)[number];

const reasonOfResource: Record<ExhaustedResource, ErrorReason> = {
  body: "too_large",
  quota: "limit_reached",
  disk: "disk_full",
};

/** The body of every error. */
export interface ErrorBody {
  /** For programs. */
  code: ErrorCode;
  /** For people: names the field and says what would be right. */
  message: string;
  /** More for programs; absent: none. */
  details?: unknown[];
}

export class ClocheError extends Error {
  readonly code: ErrorCode;
  readonly details: readonly unknown[];
  readonly resource: ExhaustedResource | undefined;
  readonly reason: ErrorReason | undefined;
  /** Seconds for a Retry-After header, if waiting helps. */
  readonly retryAfterSeconds: number | undefined;
  /** The path is known, but has only these methods: 405, and the Allow header (RFC 9110, 15.5.6). */
  readonly allow: readonly string[] | undefined;

  constructor(
    code: ErrorCode,
    message: string,
    options: {
      cause?: unknown;
      details?: unknown[];
      resource?: ExhaustedResource;
      /** Default: the reason of `resource`. */
      reason?: ErrorReason;
      retryAfterSeconds?: number;
      allow?: readonly string[];
    } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "ClocheError";
    this.code = code;
    this.details = options.details ?? [];
    this.resource = options.resource;
    this.reason = options.reason ?? (options.resource && reasonOfResource[options.resource]);
    this.retryAfterSeconds = options.retryAfterSeconds;
    this.allow = options.allow;
  }

  /** The body that every surface sends (spec/contract.md, Both surfaces). */
  toBody(): ErrorBody {
    const body: ErrorBody = { code: this.code, message: this.message };
    const details = [...this.details, ...(this.reason === undefined ? [] : [{ reason: this.reason }])];
    if (details.length > 0) body.details = details;
    return body;
  }

  /** The error of a known path for a method that it does not have. */
  static methodNotAllowed(method: string | undefined, allow: readonly string[]): ClocheError {
    const message = `${method} is not possible here; use ${allow.join(" or ")}`;
    return new ClocheError("unimplemented", message, { allow });
  }

  /** Turns anything thrown into a ClocheError; other errors become `internal`, with the original as private cause. */
  static from(thrown: unknown): ClocheError {
    if (thrown instanceof ClocheError) return thrown;
    return new ClocheError("internal", "internal error; the request id leads to the log line", {
      cause: thrown,
    });
  }
}

const dataPlaneStatuses: Record<ErrorCode, number> = {
  invalid_argument: 400,
  unauthenticated: 401,
  permission_denied: 403,
  not_found: 404,
  deadline_exceeded: 408,
  already_exists: 409,
  failed_precondition: 409,
  aborted: 409,
  resource_exhausted: 429,
  canceled: 499,
  internal: 500,
  unimplemented: 501,
  unavailable: 503,
};
const exhaustedStatuses: Record<ExhaustedResource, number> = { body: 413, quota: 429, disk: 507 };

/**
 * The data plane's HTTP status for an error (spec/contract.md, Both surfaces). The gateway uses Connect's own mapping.
 */
export function dataPlaneStatus(error: ClocheError): number {
  if (error.allow !== undefined) return 405;
  if (error.code === "resource_exhausted" && error.resource) return exhaustedStatuses[error.resource];
  return dataPlaneStatuses[error.code];
}
