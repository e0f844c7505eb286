/** Cross-origin rules, so that the SDK works in a browser where the operator allows its origin. */
import type { IncomingMessage, ServerResponse } from "node:http";

/** `*`, or the origins allowed; an empty list allows none. */
export type CorsOrigins = "*" | readonly string[];

const allowedHeaders = [
  "authorization",
  "content-type",
  "x-request-id",
  "x-cloche-unknown-fields",
  "connect-protocol-version",
  "connect-timeout-ms",
  "connect-content-encoding",
  "connect-accept-encoding",
  "grpc-timeout",
  "x-grpc-web",
  "x-user-agent",
  "traceparent",
  "tracestate",
].join(", ");
const exposedHeaders =
  "x-request-id, retry-after, www-authenticate, grpc-status, grpc-message, grpc-status-details-bin, connect-content-encoding";
const preflightSeconds = 7_200;

/** Parses the setting `CLOCHE_CORS_ORIGINS`: `*`, or origins separated by commas. */
export function parseCorsOrigins(setting: string): CorsOrigins {
  if (setting.trim() === "*") return "*";
  return setting
    .split(",")
    .map((origin) => origin.trim())
    .filter((origin) => origin !== "");
}

/** Sets the headers that an allowed origin needs. True: the request was a preflight and has been answered. */
export function answerCors(
  request: IncomingMessage,
  response: ServerResponse,
  origins: CorsOrigins,
): boolean {
  const { origin } = request.headers;
  const isAllowed = origin !== undefined && (origins === "*" || origins.includes(origin));
  if (origins !== "*") response.setHeader("vary", "origin");
  if (isAllowed) {
    response.setHeader("access-control-allow-origin", origins === "*" ? "*" : origin);
    response.setHeader("access-control-expose-headers", exposedHeaders);
  }
  const isPreflight = request.method === "OPTIONS" && "access-control-request-method" in request.headers;
  if (!isPreflight) return false;
  if (isAllowed) {
    response.setHeader("access-control-allow-methods", "POST, GET, OPTIONS");
    response.setHeader("access-control-allow-headers", allowedHeaders);
    response.setHeader("access-control-max-age", String(preflightSeconds));
  }
  response.writeHead(204);
  response.end();
  return true;
}
