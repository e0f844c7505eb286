import type { IncomingMessage } from "node:http";
import { fileLinkPath } from "@cloche/protocol";
import type { RawHeaders } from "../exchange/headers.ts";

/**
 * `*`: any origin may call with a token; no credentials are ever allowed, since auth is a header (spec/contract.md, The
 * running system).
 */
export type CorsOrigins = "*" | readonly string[];

const exposed =
  "x-request-id, content-length, content-range, accept-ranges, etag, last-modified, retry-after, www-authenticate, content-type, x-output-start, x-output-end";

/** Whether this is a CORS preflight, which the edge answers without a token, since browsers send none with it. */
export function isPreflight(request: IncomingMessage): boolean {
  return (
    request.method === "OPTIONS" &&
    request.headers.origin !== undefined &&
    request.headers["access-control-request-method"] !== undefined
  );
}

/** Whether the request uses a signed link, or is a preflight for that: a link may be used from any page. */
export function anyOrigin({ request, path }: { request: IncomingMessage; path: string }): boolean {
  const asked = request.headers["access-control-request-method"];
  const method = request.method === "OPTIONS" ? asked : request.method;
  return path === fileLinkPath && method !== "POST";
}

function allowOrigin(origins: CorsOrigins, origin: string): RawHeaders {
  if (origins === "*") return ["access-control-allow-origin", "*"];
  const vary = ["vary", "origin"];
  return origins.includes(origin) ? ["access-control-allow-origin", origin, ...vary] : vary;
}

/** The headers that let a browser read an answer; none when the request names no origin. */
export function corsHeaders(request: IncomingMessage, origins: CorsOrigins): RawHeaders {
  const { origin } = request.headers;
  if (origin === undefined) return [];
  const allow = allowOrigin(origins, origin);
  return allow[0] === "vary" ? allow : [...allow, "access-control-expose-headers", exposed];
}

/** The headers of a preflight's answer, a 204. An origin that is not allowed gets no permission. */
export function preflightHeaders(request: IncomingMessage, origins: CorsOrigins): RawHeaders {
  const allow = allowOrigin(origins, request.headers.origin ?? "");
  if (allow[0] === "vary") return allow;
  const wanted = request.headers["access-control-request-headers"];
  return [
    ...allow,
    "access-control-allow-methods",
    "GET, HEAD, POST, PUT, DELETE",
    "access-control-allow-headers",
    wanted ?? "authorization, content-type",
    "access-control-max-age",
    "7200",
  ];
}

/**
 * The headers of a preflight's answer for a port that is not public. Browsers send no credential with a preflight, so the edge answers
 * itself: nothing reaches the sandbox, and nothing wakes it. It permits what was asked, but no cookies. The request that follows needs
 * the sandbox's token, and the port's own server says who may read its answer.
 */
export function portPreflightHeaders({ headers }: IncomingMessage): RawHeaders {
  const { "access-control-request-method": method, "access-control-request-headers": wanted } = headers;
  return [
    "access-control-allow-origin",
    "*",
    "access-control-allow-methods",
    method ?? "GET",
    "access-control-allow-headers",
    wanted ?? "authorization",
    "access-control-max-age",
    "7200",
  ];
}
