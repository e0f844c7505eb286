import {
  ClocheError,
  type EntryInfo,
  type ExistsResponse,
  type ListResponse,
  limits,
  type OkResponse,
} from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import { queryBoolean, queryInteger } from "../http/query.ts";
import type { Route } from "../http/router.ts";
import { type Guest, GuestFileError, type GuestFiles, type GuestPath } from "../spawner/index.ts";
import { about, actingUser, filesOf } from "./acting.ts";
import { packArchive, type Unpacked, unpackArchive } from "./archive.ts";
import { chmod, chown, copy, mkdir, move } from "./change.ts";
import { entryInfo } from "./entry-info.ts";
import { fileFailure } from "./failures.ts";
import { encodedPath, pathText, queryPath, shownPath } from "./path.ts";
import { sendFile } from "./send-file.ts";
import { watch } from "./watch.ts";
import { postFile, putFile } from "./write.ts";

const depthMax = 4_096;

/** The file routes (spec/contract.md, Data plane: files). `guest` throws `unavailable` without a disk. */
export function fileRoutes(guest: () => Guest): Route[] {
  const route = (
    method: Route["method"],
    path: string,
    handle: (files: GuestFiles, exchange: Exchange) => unknown,
  ): Route => ({
    method,
    path: `/v1/files${path}`,
    handle: (exchange) => handle(filesOf(guest(), exchange), exchange),
  });
  return [
    route("PUT", "", putFile),
    route("POST", "", postFile),
    route("GET", "", read),
    route("HEAD", "", read),
    route("DELETE", "", remove),
    route("GET", "/exists", exists),
    route("GET", "/list", list),
    route("GET", "/stat", stat),
    route("POST", "/mkdir", mkdir),
    route("POST", "/move", move),
    route("POST", "/copy", copy),
    route("POST", "/chmod", chmod),
    route("POST", "/chown", chown),
    route("GET", "/watch", watch),
    { method: "POST", path: "/v1/files/archive", handle: (exchange) => unpack(guest(), exchange) },
    { method: "GET", path: "/v1/files/archive", handle: (exchange) => pack(guest(), exchange) },
  ];
}

async function read(files: GuestFiles, exchange: Exchange): Promise<undefined> {
  const path = queryPath(exchange);
  const head = exchange.request.method === "HEAD";
  const file = await about(exchange, path, files.open(path, head ? 1 : undefined));
  try {
    await sendFile(file, exchange);
  } finally {
    file.close();
  }
  return undefined;
}

async function remove(files: GuestFiles, exchange: Exchange): Promise<OkResponse> {
  const path = queryPath(exchange);
  const recursive = queryBoolean(exchange.query, "recursive") ?? false;
  if (path === "/") throw new ClocheError("invalid_argument", "path: / cannot be deleted");
  await about(exchange, path, files.remove(path, recursive));
  return { ok: true };
}

async function exists(files: GuestFiles, exchange: Exchange): Promise<ExistsResponse> {
  const path = queryPath(exchange);
  try {
    const { kind } = await files.lstat(path);
    return { exists: true, entry_type: kind === "directory" || kind === "symlink" ? kind : "file" };
  } catch (error) {
    const failure = fileFailure(error, { path: ["path", pathText(path)], user: actingUser(exchange) });
    // A path through a file, or with an impossible name, does not exist.
    const nothing =
      error instanceof GuestFileError && error.subject === "path" && failure instanceof ClocheError;
    if (nothing && (failure.code === "not_found" || failure.code === "invalid_argument"))
      return { exists: false, entry_type: "" };
    throw failure;
  }
}

async function list(files: GuestFiles, exchange: Exchange): Promise<ListResponse> {
  const path = shownPath(queryPath(exchange));
  const depth = queryInteger(exchange.query, "depth", 1, Number.MAX_SAFE_INTEGER) ?? 1;
  const withAttributes = queryBoolean(exchange.query, "attributes") ?? false;
  const withTargets = queryBoolean(exchange.query, "targets") ?? false;
  const { entries, truncated } = await about(
    exchange,
    path,
    files.list(path, Math.min(depth, depthMax), limits.listEntries, withAttributes),
  );
  const encoded = encodedPath(path);
  const infos = entries.map((entry) => entryInfo(entry, entry.path, withAttributes));
  for (const [at, { kind, path: link }] of entries.entries())
    if (withTargets && kind === "symlink") Object.assign(infos[at] as EntryInfo, await targetOf(files, link));
  return {
    path: pathText(path),
    ...(encoded !== undefined && { path_encoded: encoded }),
    entries: infos,
    truncated,
  };
}

/** What a symlink leads to; empty: nothing, or nothing that may be seen. */
async function targetOf(files: GuestFiles, path: GuestPath): Promise<Pick<EntryInfo, "target_type">> {
  try {
    const { kind } = await files.stat(path, false);
    return { target_type: kind === "directory" ? kind : "file" };
  } catch (error) {
    if (error instanceof GuestFileError) return { target_type: "" };
    throw error;
  }
}

async function stat(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const path = queryPath(exchange);
  const follow = queryBoolean(exchange.query, "follow") ?? false;
  const withAttributes = queryBoolean(exchange.query, "attributes") ?? false;
  const asked = follow ? files.stat(path, withAttributes) : files.lstat(path, withAttributes);
  return entryInfo(await about(exchange, path, asked), shownPath(path), withAttributes);
}

async function unpack(guest: Guest, exchange: Exchange): Promise<{ ok: true } & Unpacked> {
  const path = queryPath(exchange);
  return { ok: true, ...(await unpackArchive(guest, path, exchange, actingUser(exchange))) };
}

async function pack(guest: Guest, exchange: Exchange): Promise<undefined> {
  await packArchive(guest, queryPath(exchange), exchange, actingUser(exchange));
  return undefined;
}
