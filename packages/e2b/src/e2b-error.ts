import { ClocheError, dataPlaneStatus } from "@cloche/protocol";
import { ClocheApiError, ClocheConnectionError } from "@cloche/sdk";

/** Connect's codes with the HTTP statuses that E2B's clients expect with them. */
const statuses = {
  invalid_argument: 400,
  unauthenticated: 401,
  permission_denied: 403,
  not_found: 404,
  already_exists: 409,
  failed_precondition: 409,
  aborted: 409,
  deadline_exceeded: 504,
  resource_exhausted: 429,
  data_loss: 500,
  unimplemented: 501,
  unavailable: 503,
  internal: 500,
  canceled: 499,
  unknown: 500,
} as const;
export type E2bCode = keyof typeof statuses;

/** An error answer: over HTTP `{"code": <status>, "message"}`, over Connect `{"code": "<code>", "message"}`. */
export class E2bError extends Error {
  readonly code: E2bCode;
  readonly status: number;
  /** Seconds for Retry-After, if waiting helps. */
  readonly retryAfterSeconds: number | undefined;

  constructor(
    code: E2bCode,
    message: string,
    options: { status?: number; cause?: unknown; retryAfterSeconds?: number | undefined } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "E2bError";
    this.code = code;
    this.status = options.status ?? statuses[code];
    this.retryAfterSeconds = options.retryAfterSeconds;
  }

  /** Makes an E2bError of any thrown value. Unexpected ones are internal; their cause goes only into the log. */
  static from(thrown: unknown): E2bError {
    if (thrown instanceof E2bError) return thrown;
    if (thrown instanceof ClocheApiError) {
      const { code, message, retryAfterSeconds } = thrown;
      const status = thrown.status === 507 || thrown.status === 413 ? thrown.status : undefined;
      return new E2bError(code, message, { cause: thrown, retryAfterSeconds, ...(status && { status }) });
    }
    if (thrown instanceof ClocheError)
      return new E2bError(thrown.code, thrown.message, {
        status: dataPlaneStatus(thrown),
        cause: thrown.cause,
      });
    if (thrown instanceof ClocheConnectionError)
      return new E2bError("unavailable", "the service gives no answer; it may be starting", {
        cause: thrown,
      });
    return new E2bError("internal", "internal error; the request id leads to the log line", {
      cause: thrown,
    });
  }
}

export const badField = (field: string, is: unknown, must: string): E2bError => {
  const shown = JSON.stringify(is)?.slice(0, 100) ?? "missing";
  return new E2bError("invalid_argument", `${field} is ${shown}; it must be ${must}`);
};

/** The error of a feature that Cloche does not have. Such a request is never answered with success. */
export const notOffered = (what: string): E2bError =>
  new E2bError("unimplemented", `Cloche does not offer ${what} (docs/e2b.md)`);

/** E2B's clients recognise a sandbox that does not run by the status 502 and these words. */
export const notRunning = (sandboxId: string): E2bError =>
  new E2bError("unavailable", `The sandbox was not found: ${sandboxId} is not running`, { status: 502 });

/** The sandbox runs but is not reachable. */
export const unreachable = (sandboxId: string, cause: unknown): E2bError =>
  new E2bError("unavailable", `The sandbox ${sandboxId} is running but port is not open`, {
    status: 502,
    cause,
  });

export const noSandbox = (sandboxId: string): E2bError =>
  new E2bError("not_found", `there is no sandbox ${JSON.stringify(sandboxId.slice(0, 100))}`);
