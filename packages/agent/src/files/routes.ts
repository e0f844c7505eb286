import {
  ClocheError,
  type EntryInfo,
  type ExistsResponse,
  type ListResponse,
  limits,
  type OkResponse,
} from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import { optionalBoolean } from "../http/fields.ts";
import { queryBoolean, queryInteger } from "../http/query.ts";
import type { Route } from "../http/router.ts";
import { type Guest, GuestFileError, type GuestFiles, type GuestPath } from "../spawner/index.ts";
import { packArchive, type Unpacked, unpackArchive } from "./archive.ts";
import { entryInfo } from "./entry-info.ts";
import { type FailureSubjects, fileFailure } from "./failures.ts";
import { bodyPath, encodedPath, endsInSlash, pathText, queryPath, shownPath } from "./path.ts";
import { sendFile } from "./send-file.ts";

const depthMax = 4_096;

/** The file routes (service-interface.md, Data plane: files). `guest` throws `unavailable` without a disk. */
export function fileRoutes(guest: () => Guest): Route[] {
  const files = (): GuestFiles => guest().files;
  return [
    { method: "POST", path: "/v1/files", handle: (exchange) => write(files(), exchange) },
    { method: "GET", path: "/v1/files", handle: (exchange) => read(files(), exchange) },
    { method: "HEAD", path: "/v1/files", handle: (exchange) => read(files(), exchange) },
    { method: "DELETE", path: "/v1/files", handle: (exchange) => remove(files(), exchange) },
    { method: "GET", path: "/v1/files/exists", handle: (exchange) => exists(files(), exchange) },
    { method: "GET", path: "/v1/files/list", handle: (exchange) => list(files(), exchange) },
    { method: "GET", path: "/v1/files/stat", handle: (exchange) => stat(files(), exchange) },
    { method: "POST", path: "/v1/files/mkdir", handle: (exchange) => mkdir(files(), exchange) },
    { method: "POST", path: "/v1/files/move", handle: (exchange) => move(files(), exchange) },
    { method: "POST", path: "/v1/files/archive", handle: (exchange) => unpack(guest(), exchange) },
    { method: "GET", path: "/v1/files/archive", handle: (exchange) => pack(guest(), exchange) },
  ];
}

/** Runs an operation and names the path in what it throws. */
async function about<T>(
  path: GuestPath,
  operation: Promise<T>,
  more: Partial<FailureSubjects> = {},
): Promise<T> {
  try {
    return await operation;
  } catch (error) {
    throw fileFailure(error, { path: ["path", pathText(path)], ...more });
  }
}

async function write(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const path = queryPath(exchange);
  const mode = readMode(exchange.request.headers["x-file-mode"]);
  if (endsInSlash(path) || path === "/")
    throw new ClocheError("invalid_argument", "path must name a file, not end with a slash");
  const body = await exchange.readBodyPieces(limits.fileWriteBytes);
  return entryInfo(await about(path, files.write(path, body, mode)), path);
}

function readMode(header: string | string[] | undefined): number | undefined {
  if (header === undefined || header === "") return undefined;
  if (typeof header !== "string" || !/^[0-7]{1,4}$/.test(header)) {
    throw new ClocheError("invalid_argument", "x-file-mode must be an octal string such as 0644");
  }
  return Number.parseInt(header, 8);
}

async function read(files: GuestFiles, exchange: Exchange): Promise<undefined> {
  const path = queryPath(exchange);
  const head = exchange.request.method === "HEAD";
  const file = await about(path, files.open(path, head ? 1 : undefined));
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
  await about(path, files.remove(path, recursive));
  return { ok: true };
}

async function exists(files: GuestFiles, exchange: Exchange): Promise<ExistsResponse> {
  const path = queryPath(exchange);
  try {
    const { kind } = await files.lstat(path);
    return { exists: true, entry_type: kind === "directory" || kind === "symlink" ? kind : "file" };
  } catch (error) {
    const failure = fileFailure(error, { path: ["path", pathText(path)] });
    // A path that leads through a file, or has a name no file can have, names nothing.
    const nothing = error instanceof GuestFileError && failure instanceof ClocheError;
    if (nothing && (failure.code === "not_found" || failure.code === "invalid_argument"))
      return { exists: false, entry_type: "" };
    throw failure;
  }
}

async function list(files: GuestFiles, exchange: Exchange): Promise<ListResponse> {
  const path = shownPath(queryPath(exchange));
  const depth = queryInteger(exchange.query, "depth", 1, Number.MAX_SAFE_INTEGER) ?? 1;
  const { entries, truncated } = await about(
    path,
    files.list(path, Math.min(depth, depthMax), limits.listEntries),
  );
  const encoded = encodedPath(path);
  return {
    path: pathText(path),
    ...(encoded !== undefined && { path_encoded: encoded }),
    entries: entries.map((entry) => entryInfo(entry)),
    truncated,
  };
}

async function stat(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const path = queryPath(exchange);
  return entryInfo(await about(path, files.lstat(path)), shownPath(path));
}

async function mkdir(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const body = await exchange.readJson();
  const path = bodyPath(body, "path");
  const parents = optionalBoolean(body, "parents") ?? false;
  return entryInfo(await about(path, files.mkdir(path, parents)), shownPath(path));
}

async function move(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const body = await exchange.readJson();
  const source = bodyPath(body, "source");
  const destination = bodyPath(body, "destination");
  const moved = await about(source, files.move(source, destination), {
    path: ["source", pathText(source)],
    destination: ["destination", pathText(destination)],
  });
  return entryInfo(moved, shownPath(destination));
}

async function unpack(guest: Guest, exchange: Exchange): Promise<{ ok: true } & Unpacked> {
  const path = queryPath(exchange);
  return { ok: true, ...(await unpackArchive(guest, path, exchange)) };
}

async function pack(guest: Guest, exchange: Exchange): Promise<undefined> {
  await packArchive(guest, queryPath(exchange), exchange);
  return undefined;
}
