import type { IncomingMessage, ServerResponse } from "node:http";
import { ClocheError, dataPlaneStatus, requestIdFrom } from "@cloche/protocol";
import { randomBytes } from "node:crypto";
import { parseJson } from "./json-values.ts";
import { type BodyBounds, readBody } from "./listeners/read-body.ts";

/** The caller's request id if its form is valid, else a new one. */
export function requestIdOf(headers: IncomingMessage["headers"]): string {
  return requestIdFrom(headers["x-request-id"], randomBytes);
}

/** The JSON object of a body; an empty body is `{}`. */
export async function readJsonBody(
  request: IncomingMessage,
  bounds: BodyBounds,
): Promise<Record<string, unknown>> {
  const body = await readBody(request, bounds);
  if (body.length === 0) return {};
  let parsed: unknown;
  try {
    parsed = parseJson(body);
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    throw new ClocheError("invalid_argument", "request body is not valid JSON", { cause: error });
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) {
    throw new ClocheError("invalid_argument", "request body must be a JSON object");
  }
  return parsed as Record<string, unknown>;
}

export function sendJson(response: ServerResponse, status: number, body: unknown): void {
  if (response.headersSent || response.destroyed) return;
  const text = JSON.stringify(body);
  response.writeHead(status, {
    "content-type": "application/json",
    "content-length": Buffer.byteLength(text),
  });
  response.end(text);
}

/** Sends the error body with the data plane's status; does not wait for the unread rest of the request. */
export function sendError(response: ServerResponse, thrown: unknown): ClocheError {
  const error = ClocheError.from(thrown);
  const status = dataPlaneStatus(error);
  if (!response.headersSent) {
    if (status === 401) response.setHeader("www-authenticate", "Bearer");
    if (error.retryAfterSeconds !== undefined)
      response.setHeader("retry-after", String(error.retryAfterSeconds));
    if (error.allow !== undefined) response.setHeader("allow", error.allow.join(", "));
  }
  sendJson(response, status, error.toBody());
  return error;
}
