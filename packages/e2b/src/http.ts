/** Bodies and answers of both halves of the endpoint. */
import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { type Hold, readJsonBody } from "@cloche/base";
import { limits } from "@cloche/protocol";
import { E2bError } from "./e2b-error.ts";

export type Fields = Record<string, unknown>;

/** `checkCaller` throws if the caller's key is not valid; a small body is read without it. */
export const apiBody = (request: IncomingMessage, checkCaller: () => Promise<Hold>): Promise<Fields> =>
  readJsonBody(request, { maxBytes: limits.gatewayBodyBytes, checkCaller });

export function answerJson(
  response: ServerResponse,
  status: number,
  body?: unknown,
  headers: Record<string, string> = {},
): void {
  if (response.headersSent || response.destroyed) return;
  const text = body === undefined ? "" : JSON.stringify(body);
  response.writeHead(status, {
    ...headers,
    ...(body === undefined ? {} : { "content-type": "application/json" }),
    ...(status === 204 ? {} : { "content-length": Buffer.byteLength(text) }),
  });
  response.end(text);
}

/** Answers in E2B's error format. If an answer has begun, the connection is cut, so that a part does not look complete. */
export function answerError(response: ServerResponse, thrown: unknown): E2bError {
  const error = E2bError.from(thrown);
  if (response.headersSent) {
    response.destroy();
    return error;
  }
  answerJson(response, error.status, { code: error.status, message: error.message }, errorHeaders(error));
  return error;
}

/** Headers that control the clients' retries: if the sandbox does not run, a retry does not help. */
export function errorHeaders(error: E2bError): Record<string, string> {
  return {
    ...(error.status === 502 && { "should-retry": "false" }),
    ...(error.retryAfterSeconds !== undefined && {
      "retry-after": String(Math.ceil(error.retryAfterSeconds)),
    }),
    ...(error.status === 413 && { connection: "close" }),
  };
}

/** Writes a piece of an answer, and waits for a slow reader. */
export async function written(response: ServerResponse, piece: Uint8Array): Promise<void> {
  if (response.write(piece) || response.destroyed) return;
  const over = new AbortController();
  const { signal } = over;
  const waits = [once(response, "drain", { signal }), once(response, "close", { signal })];
  await Promise.race(waits).catch(() => undefined);
  over.abort();
  await Promise.allSettled(waits);
}

/** Path and query of a request; throws for a target that is no URL's. */
export function targetOf({ url = "/" }: IncomingMessage): URL {
  const target = URL.parse(url, "http://e2b");
  if (target === null) throw new E2bError("invalid_argument", "the request target is no path of a URL");
  return target;
}

/** One header as text; undefined where it is absent. */
export const headerOf = (request: IncomingMessage, name: string): string | undefined => {
  const value = request.headers[name];
  return Array.isArray(value) ? value[0] : value;
};

/** Calls back when the answer is over, at once if it is: the client may leave while its key is checked. */
export function whenClosed(response: ServerResponse, then: () => void): void {
  if (response.closed) then();
  else response.once("close", then);
}

/** Aborts when the client goes away before its answer is complete. */
export function signalOf(response: ServerResponse): AbortSignal {
  const leaving = new AbortController();
  whenClosed(response, () => {
    if (!response.writableFinished) leaving.abort(new E2bError("canceled", "the client went away"));
  });
  return leaving.signal;
}
