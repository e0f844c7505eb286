/**
 * Makes links to files for who has the sandbox's token, and lets in who has a link: for that path and that operation, whatever else the
 * request says. A link that is good for one use is used up at the gateway, right before the agent is asked.
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
import type { Exchange } from "./exchange.ts";
import { type FileLink, signFileLink, verifyFileLink } from "./file-link.ts";
import { readFileLinkRequest } from "./file-link-request.ts";
import type { RawHeaders } from "./headers.ts";
import type { RouteClient } from "./route-table.ts";

const useTimeoutMs = 10_000;
const operations: Record<string, FileLink["operation"]> = { GET: "read", HEAD: "read", PUT: "write" };

/** Headers of who uses a link that say more than the link does. */
export const linkDropped: ReadonlySet<string> = new Set([
  "authorization",
  "cookie",
  "x-file-user",
  "x-file-mode",
  "x-file-owner",
  "x-file-group",
]);
/** Parameters of all other file routes: a link that is used with one is used for something else. */
const foreign = ["path", "path_encoded", "as_user", "append", "recursive"];

export const isFileLinkUse = ({ request, path }: Exchange): boolean =>
  path === fileLinkPath && request.method !== "POST";

/** The token of the link that a request uses; undefined: it has none. */
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

/** `address`: a URL at which anybody reaches the sandbox's data plane, as the client did. */
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

/** The link that the request uses. Throws 401 where there is no good one, 403 where it is for something else. */
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

/** A look at its headers leaves a link as it is. */
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

/** What the agent is asked for. */
export function fileTarget({ path, user }: FileLink): string {
  const as = user === undefined ? "" : `&as_user=${encodeURIComponent(user)}`;
  return `/v1/files?path=${path.replaceAll("+", "%2B")}${as}`;
}

/** For a browser: the file is saved by its name, and never run as a page of the sandbox's. */
export function fileHeaders({ path, operation }: FileLink): RawHeaders {
  const name = path.slice(path.lastIndexOf("/") + 1).replaceAll("'", "%27");
  const saved = operation === "read" ? ["content-disposition", `attachment; filename*=UTF-8''${name}`] : [];
  return [...saved, "x-content-type-options", "nosniff", "referrer-policy", "no-referrer"];
}

function keyOf({ linkKey }: Route): Uint8Array {
  if (linkKey.length > 0) return linkKey;
  throw new ClocheError("unimplemented", "links to files are not offered by this service's gateway");
}
