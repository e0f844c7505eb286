/**
 * Who may reach a port of a sandbox at `https://<port>-<id>.<base domain>`: a caller with the sandbox's token, a
 * browser with the cookie of a one-time link (valid for that port only), and anyone if the owner made the port public.
 * Neither cookie nor token reaches the user's server, in whatever header. At the shared address
 * of all sandboxes, and without TLS, there is no such cookie.
 */
import type { IncomingMessage } from "node:http";
import { Code, ConnectError } from "@connectrpc/connect";
import { bearerToken, type TokenVerifier } from "@cloche/base";
import { ClocheError, internalHeaders, portLinkPath } from "@cloche/protocol";
import type { RawHeaders } from "../exchange/headers.ts";
import type { RouteClient } from "../route-table.ts";
import type { NeighbourPort } from "./neighbour.ts";
import { isApiKey, isOurToken } from "../exchange/request-token.ts";
import { sandboxIdHeader, sandboxPortHeader } from "./shared-address.ts";

/** `__Host-`: browsers accept the cookie only as host-only, Secure and for `/`, so no sibling sandbox can set one. */
export const portCookie = "__Host-cloche";

export interface PortCredentials {
  /** The token to verify; undefined: the request has none. */
  token: string | undefined;
  fromCookie: boolean;
  /** Headers of the client that must not be forwarded. */
  dropped: Set<string>;
  /** The request's cookies without ours. */
  cookies: string | undefined;
}

/** How a port is reached. */
export interface PortPlace {
  /** At the shared address, without cookies: what precedes the port's paths. Undefined: the port's own domain. */
  prefix: string | undefined;
  isPlain: boolean;
  /** The Host header for the user's server. */
  host: string;
}

/** Our cookie is Secure and of one origin: it is accepted only over TLS on the port's own domain. */
export const takesCookie = ({ prefix, isPlain }: Omit<PortPlace, "host">): boolean =>
  prefix === undefined && !isPlain;

/**
 * Finds our token in a request. An Authorization that is not ours belongs to the user's server and is kept. `found`: a
 * neighbour's token, and headers that are the neighbour's.
 */
export function portCredentials(
  request: IncomingMessage,
  issuer: string | undefined,
  place: PortPlace,
  found?: NeighbourPort,
): PortCredentials {
  const dropped = new Set([
    ...(found === undefined ? [] : [...found.dropped, "host"]),
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "forwarded",
    "cookie",
    "e2b-traffic-access-token",
  ]);
  const isShared = place.prefix !== undefined;
  if (isShared) dropped.add(sandboxIdHeader).add(sandboxPortHeader);
  const cookies = splitCookies(request.headers.cookie);
  const own = takesCookie(place) ? cookies.own : undefined;
  const bearer = bearerToken(request.headers.authorization);
  const isOurs = (value: string | undefined): boolean =>
    value !== undefined && (issuer === undefined || isOurToken(value, issuer));
  const ours = isOurs(bearer);
  // A repeated header's first value counts, but each would be passed on.
  const isSecret = (value = ""): boolean => isOurs(value) || isApiKey(value);
  if (valuesOf(request, "authorization").some((value) => isSecret(bearerToken(value))))
    dropped.add("authorization");
  if (valuesOf(request, "x-api-key").some(isApiKey)) dropped.add("x-api-key");
  return {
    token: found?.token ?? (ours ? bearer : own),
    fromCookie: found?.token === undefined && !ours && own !== undefined,
    dropped,
    cookies: isShared ? undefined : cookies.others,
  };
}

function valuesOf({ rawHeaders }: IncomingMessage, name: string): string[] {
  return rawHeaders.filter((_, at) => at % 2 === 1 && rawHeaders[at - 1]?.toLowerCase() === name);
}

function splitCookies(header: string | undefined): { own: string | undefined; others: string | undefined } {
  if (header === undefined) return { own: undefined, others: undefined };
  const pairs = header.split(";").map((pair) => pair.trim());
  const isOwn = (pair: string): boolean => pair.startsWith(`${portCookie}=`);
  const others = pairs.filter((pair) => pair !== "" && !isOwn(pair)).join("; ");
  return { own: pairs.find(isOwn)?.slice(portCookie.length + 1), others: others === "" ? undefined : others };
}

/**
 * Refuses a request that a page of another origin caused, except for following a link. Browsers send the cookie
 * whatever page caused the request, and sibling sandboxes are the same site.
 */
export function checkSameOrigin(request: IncomingMessage): void {
  const { origin, host } = request.headers;
  const site = request.headers["sec-fetch-site"];
  const navigates = request.headers["sec-fetch-mode"] === "navigate" && request.method === "GET";
  const foreignOrigin = origin !== undefined && origin.toLowerCase() !== `https://${host?.toLowerCase()}`;
  const foreignSite = (site === "same-site" || site === "cross-site") && !navigates;
  if (foreignOrigin || foreignSite) {
    throw new ClocheError(
      "permission_denied",
      "the port's cookie is good for its own pages only; other origins send the token as Authorization: Bearer <token>",
    );
  }
}

/** Verifies the caller of a port. Throws 401 when the token is missing or wrong. */
export async function authorisePort(
  request: IncomingMessage,
  credentials: PortCredentials,
  verifier: TokenVerifier,
  target: { sandboxId: string; port: number },
): Promise<void> {
  const { token, fromCookie } = credentials;
  if (fromCookie && token !== undefined) {
    verifier.verifyForPort(token, target);
    checkSameOrigin(request);
  } else verifier.verify(token, target.sandboxId);
}

/** Headers that tell the user's server what the client asked for, in the form that dev servers and frameworks read. */
export function portHeaders(
  request: IncomingMessage,
  credentials: PortCredentials,
  { prefix, isPlain, host }: PortPlace,
): RawHeaders {
  const headers: RawHeaders = [
    "X-Forwarded-For",
    request.socket.remoteAddress ?? "unknown",
    "X-Forwarded-Proto",
    isPlain ? "http" : "https",
    "X-Forwarded-Host",
    host,
  ];
  if (prefix !== undefined && prefix !== "") headers.push("X-Forwarded-Prefix", prefix);
  if (credentials.cookies !== undefined) headers.push("Cookie", credentials.cookies);
  return headers;
}

/**
 * Redeems `/__cloche/link?token=…&path=…` (IssuePortLink); each link works once. Returns the headers of a redirect to
 * `path`, which stays on the same origin. The cookie lives as long as its token, which the gateway issues (TokenIssuer).
 */
export async function redeemPortLink(
  request: IncomingMessage,
  client: RouteClient,
  target: { sandboxId: string; port: number },
  nowMs: number,
  requestId: string,
): Promise<RawHeaders> {
  if (request.method !== "GET") throw ClocheError.methodNotAllowed(request.method, ["GET"]);
  const query = new URLSearchParams((request.url ?? "").slice(portLinkPath.length + 1));
  const linkToken = query.get("token");
  if (linkToken === null || linkToken === "") {
    throw new ClocheError("invalid_argument", "token is missing from the port link");
  }
  const path = query.get("path") ?? "/";
  // One slash and no backslash after it: "//elsewhere" would be another host.
  if (!/^\/(?![/\\])[\x21-\x7e]*$/.test(path)) {
    throw new ClocheError(
      "invalid_argument",
      "path of a port link must be an absolute path on the same host",
    );
  }
  const options = { timeoutMs: 10_000, headers: { [internalHeaders.requestId]: requestId } };
  const { cookieToken, expiresAtUnix } = await client
    .redeemPortLink({ linkToken, sandboxId: target.sandboxId, port: target.port }, options)
    .catch((error: unknown) => {
      throw linkProblem(error);
    });
  const maxAge = Math.max(0, expiresAtUnix - Math.floor(nowMs / 1000));
  return [
    "location",
    path,
    "set-cookie",
    `${portCookie}=${cookieToken}; Path=/; Max-Age=${maxAge}; HttpOnly; Secure; SameSite=Lax`,
    "cache-control",
    "no-store",
    "referrer-policy",
    "no-referrer",
    "content-length",
    "0",
  ];
}

function linkProblem(error: unknown): ClocheError {
  const { code } = ConnectError.from(error);
  const passing =
    code === Code.Unavailable ||
    code === Code.DeadlineExceeded ||
    code === Code.Internal ||
    code === Code.Unknown;
  if (passing)
    return new ClocheError("unavailable", "the port link cannot be redeemed now", { cause: error });
  return new ClocheError(
    "unauthenticated",
    "the port link was used, has expired or is not of this port; get a new one",
    {
      cause: error,
    },
  );
}
