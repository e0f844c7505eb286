import type { IncomingMessage } from "node:http";
import { unknownFieldsHeader } from "@cloche/protocol";
import { tokenSubprotocol } from "./request-token.ts";

/** Names and values alternating, as in node:http, with original case, order and repetition. */
export type RawHeaders = string[];

/** Headers for one connection, never forwarded (RFC 9110, 7.6.1). */
const hopByHop = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "proxy-authenticate",
  "proxy-authorization",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

/** Headers that `Connection` names are hop-by-hop too, except those that the far end needs. */
function namedByConnection(value: string | undefined): Set<string> | undefined {
  if (value === undefined || /^\s*(?:keep-alive|close|upgrade)\s*$/i.test(value)) return undefined;
  const names = value.split(",").map((name) => name.trim().toLowerCase());
  return new Set(names.filter((name) => !endToEnd.has(name)));
}
/** A client must not make the edge drop these by naming them in `Connection`. */
const endToEnd = new Set([
  "host",
  "authorization",
  "content-length",
  "content-type",
  "cookie",
  "x-request-id",
]);

/** Whether the header is internal between edge, agent and host; it is dropped when a client sends it. */
const isInternal = (name: string): boolean => name.startsWith("x-cloche-") && name !== unknownFieldsHeader;

/**
 * The client's headers as the agent or a sandbox's own server gets them: without hop-by-hop and internal headers,
 * `x-request-id` (the edge adds its own) and those in `dropped`. Framing headers are left to the caller.
 * `authorization`: replaces the client's.
 */
export function forwardableHeaders(
  request: IncomingMessage,
  dropped?: ReadonlySet<string>,
  authorization?: string,
): RawHeaders {
  const raw = request.rawHeaders;
  const named = namedByConnection(request.headers.connection);
  const kept: RawHeaders = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] as string;
    const lower = name.toLowerCase();
    if (hopByHop.has(lower) || lower === "content-length" || lower === "x-request-id" || isInternal(lower))
      continue;
    if (named?.has(lower) || dropped?.has(lower)) continue;
    if (authorization !== undefined && lower === "authorization") continue;
    const value = raw[index + 1] as string;
    const shown = lower === "sec-websocket-protocol" ? withoutTokens(value) : value;
    if (shown !== "" || value === "") kept.push(name, shown);
  }
  if (authorization !== undefined && authorization !== "") kept.push("Authorization", authorization);
  return kept;
}

/** The offered subprotocols without tokens: an owner's token never leaves the edge. */
function withoutTokens(offered: string): string {
  const names = offered.split(",").map((name) => name.trim());
  return names.filter((name) => !name.toLowerCase().startsWith(tokenSubprotocol)).join(", ");
}

const domainOfCookie = /;\s*domain\s*(?:=[^;]*)?(?=;|$)/gi;

/**
 * An answer's headers as the client gets them: without hop-by-hop and internal headers and the far end's request id.
 * Cookies lose their `Domain`: one for the base domain would be sent to the sandboxes of others.
 */
export function answerHeaders(raw: RawHeaders, isDropped?: (name: string) => boolean): RawHeaders {
  const kept: RawHeaders = [];
  let named: Set<string> | undefined;
  for (let index = 0; index + 1 < raw.length; index += 2) {
    if ((raw[index] as string).toLowerCase() === "connection") named = namedByConnection(raw[index + 1]);
  }
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const lower = (raw[index] as string).toLowerCase();
    if (hopByHop.has(lower) || lower === "x-request-id" || isInternal(lower)) continue;
    if (named?.has(lower) || isDropped?.(lower)) continue;
    const value = raw[index + 1] as string;
    kept.push(raw[index] as string, lower === "set-cookie" ? value.replace(domainOfCookie, "") : value);
  }
  return kept;
}
