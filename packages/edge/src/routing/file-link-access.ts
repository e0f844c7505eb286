/**
 * Makes links to files for callers with the sandbox's token, and admits requests that use a link, for its path and
 * operation only. A one-time link is used up at the gateway, right before the agent is asked.
 */
import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  ClocheError,
  fileLinkPath,
  type FileLink as FileLinkAnswer,
  internalHeaders,
} from "@cloche/protocol";
import type { Route } from "@cloche/protocol/edge";
import type { Exchange } from "../exchange/exchange.ts";
import { type FileLink, signFileLink, verifyFileLink } from "./file-link-token.ts";
import { readFileLinkRequest } from "./file-link-request.ts";
import type { RawHeaders } from "../exchange/headers.ts";
import type { RouteClient } from "../route-table.ts";

const useTimeoutMs = 10_000;
const operations: Record<string, FileLink["operation"]> = { GET: "read", HEAD: "read", PUT: "write" };

/** Headers that are dropped from a request with a link, because they could ask for more than the link allows. */
export const linkDropped: ReadonlySet<string> = new Set([
  "authorization",
  "cookie",
  "x-file-user",
  "x-file-mode",
  "x-file-owner",
  "x-file-group",
  "x-file-attributes",
]);
/** Query parameters of the other file routes: a request with a link must not have them. */
const foreign = ["path", "path_encoded", "as_user", "append", "recursive"];

export const isFileLinkUse = ({ request, path }: Exchange): boolean =>
  path === fileLinkPath && request.method !== "POST";

/** The query of the request, which has the link's token. */
const queryOf = ({ request }: Exchange): URLSearchParams => {
  const url = request.url ?? "";
  const mark = url.indexOf("?");
  return new URLSearchParams(mark < 0 ? "" : url.slice(mark + 1));
};

export function methodRefused(exchange: Exchange): boolean {
  const { method = "" } = exchange.request;
  if (method === "POST" || operations[method] !== undefined) return false;
  exchange.fail(ClocheError.methodNotAllowed(method, ["POST", "GET", "HEAD", "PUT"]));
  return true;
}

/** `address`: the URL of the sandbox's data plane, as the client reached it. */
export async function makeFileLink(
  exchange: Exchange,
  route: Route,
  address: string,
  nowMs: number,
): Promise<FileLinkAnswer> {
  const { path, operation, expiresInSeconds, once, user } = await readFileLinkRequest(exchange);
  const expiresAtMs = nowMs + expiresInSeconds * 1_000;
  const onceId = once ? randomBytes(16).toString("base64url") : undefined;
  const link = { path, operation, user, onceId, expiresAtMs };
  const token = signFileLink(keyOf(route), route.sandboxId, link);
  return { url: `${address}${fileLinkPath}?token=${token}`, expires_at: new Date(expiresAtMs).toISOString() };
}

/** The link that the request uses. Throws 401 when there is no valid link, 403 when it does not allow the request. */
export function fileLinkOf(exchange: Exchange, route: Route, nowMs: number): FileLink {
  const query = queryOf(exchange);
  const token = query.get("token");
  if (token === null)
    throw new ClocheError("unauthenticated", "token is missing: the link is /v1/files/link?token=…");
  const link = verifyFileLink(keyOf(route), route.sandboxId, token, nowMs);
  const other = foreign.find((name) => query.has(name));
  if (other !== undefined)
    throw new ClocheError("permission_denied", `${other}: a link is good for its own path only`);
  if (operations[exchange.request.method ?? ""] !== link.operation)
    throw new ClocheError(
      "permission_denied",
      `the link is for a ${link.operation} (${link.operation === "read" ? "GET" : "PUT"}), not for ${exchange.request.method}`,
    );
  return link;
}

/** Uses up a one-time link at the gateway; a HEAD request does not use it up. */
export async function useUp(link: FileLink, exchange: Exchange, client: RouteClient): Promise<void> {
  const { onceId: linkId, expiresAtMs } = link;
  if (linkId === undefined || exchange.request.method === "HEAD") return;
  const { sandboxId, requestId } = exchange;
  const options = { timeoutMs: useTimeoutMs, headers: { [internalHeaders.requestId]: requestId } };
  await client
    .useFileLink({ sandboxId, linkId, expiresAtUnixMs: BigInt(expiresAtMs) }, options)
    .catch((error: unknown) => {
      const { code } = ConnectError.from(error);
      throw code === Code.AlreadyExists || code === Code.NotFound
        ? new ClocheError("unauthenticated", "the link was used; get a new one", { cause: error })
        : new ClocheError("unavailable", "the link cannot be used now", {
            cause: error,
            retryAfterSeconds: 1,
          });
    });
}

/** The request target for the agent. */
export function fileTarget({ path, user }: FileLink): string {
  const as = user === undefined ? "" : `&as_user=${encodeURIComponent(user)}`;
  return `/v1/files?path=${path.replaceAll("+", "%2B")}${as}`;
}

/** Headers for browsers: the file is saved under its name, and never runs as a page of the sandbox. */
export function fileHeaders({ path, operation }: FileLink): RawHeaders {
  const name = path.slice(path.lastIndexOf("/") + 1).replaceAll("'", "%27");
  const saved = operation === "read" ? ["content-disposition", `attachment; filename*=UTF-8''${name}`] : [];
  return [...saved, "x-content-type-options", "nosniff", "referrer-policy", "no-referrer"];
}

function keyOf({ linkKey }: Route): Uint8Array {
  if (linkKey.length > 0) return linkKey;
  throw new ClocheError("unimplemented", "links to files are not offered by this service's gateway");
}
