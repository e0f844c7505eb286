import type { ErrorCode } from "@cloche/protocol";
import type { FetchResponse } from "./fetch.ts";

/** Every error that the SDK throws on its own account; an abort throws the signal's own reason. */
export class ClocheSdkError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The service answered with an error (spec/contract.md, Both surfaces). `message` names the field and says what would be right. */
export class ClocheApiError extends ClocheSdkError {
  /** `not_found`, `failed_precondition`, … */
  readonly code: ErrorCode | "unknown";
  /** HTTP status. */
  readonly status: number;
  /** Leads to the service's log line. */
  readonly requestId: string | undefined;
  readonly details: readonly unknown[];
  /** How long to wait before trying again, where the service said so. */
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
    super(message);
    this.code = fields.code;
    this.status = fields.status;
    this.requestId = fields.requestId;
    this.details = fields.details ?? [];
    this.retryAfterSeconds = fields.retryAfterSeconds;
  }
}

/** No answer came: the address does not resolve, nobody listens, the connection was lost. What was asked may have happened. */
export class ClocheConnectionError extends ClocheSdkError {}

/** A wait for a state ended without it: too long, or the sandbox went to ERROR or away. */
export class ClocheWaitError extends ClocheSdkError {}

const codesByStatus: Record<number, ErrorCode> = {
  400: "invalid_argument",
  401: "unauthenticated",
  403: "permission_denied",
  404: "not_found",
  408: "deadline_exceeded",
  409: "failed_precondition",
  413: "resource_exhausted",
  429: "resource_exhausted",
  431: "resource_exhausted",
  501: "unimplemented",
  503: "unavailable",
  507: "resource_exhausted",
};

/** The error in an answer that is not 2xx; also when a proxy in between wrote it and it has not our shape. */
export async function apiErrorOf(response: FetchResponse): Promise<ClocheApiError> {
  const text = await response.text().catch(() => "");
  let body: { code?: unknown; message?: unknown; details?: unknown } = {};
  try {
    body = (JSON.parse(text) ?? {}) as typeof body;
  } catch {
    // Not our shape; the status has to do.
  }
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  return new ClocheApiError(
    typeof body.message === "string" ? body.message : `HTTP ${response.status} ${response.statusText}`.trim(),
    {
      code:
        typeof body.code === "string"
          ? (body.code as ErrorCode)
          : (codesByStatus[response.status] ?? "unknown"),
      status: response.status,
      requestId: response.headers.get("x-request-id") ?? undefined,
      details: Array.isArray(body.details) ? body.details : undefined,
      retryAfterSeconds: Number.isFinite(retryAfter) ? retryAfter : undefined,
    },
  );
}
