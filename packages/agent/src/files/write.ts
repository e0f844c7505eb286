/**
 * Writing files: `POST` of at most 1 MiB, and `PUT` of any size, which streams to the disk at the client's pace. Both put the file in
 * place in one step, once it is complete and matches the client's checksum. A body that is cut off leaves nothing.
 */
import { createHash, type Hash } from "node:crypto";
import { ClocheError, type EntryInfo, limits } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import { queryBoolean } from "../http/query.ts";
import type { GuestFiles, GuestPath, GuestUpload, WriteWish } from "../spawner/index.ts";
import { about, accountName } from "./acting.ts";
import { readAttributes } from "./attributes.ts";
import { entryInfo } from "./entry-info.ts";
import type { FailureSubjects } from "./failures.ts";
import { endsInSlash, pathText, queryPath } from "./path.ts";
import { bodyPieces } from "./upload-body.ts";

/** The fields of a request about the file it writes. */
interface WriteRequest {
  path: GuestPath;
  wish: WriteWish;
  /** SHA-256 of the body, hex; undefined: not given. */
  sha256: string | undefined;
  subjects: Partial<FailureSubjects>;
}

export async function postFile(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const request = readWrite(exchange);
  const { path, wish, sha256 } = request;
  const body = await exchange.readBodyPieces(limits.fileWriteBytes);
  if (sha256 !== undefined)
    checkSha256(
      body.reduce((hash, piece) => hash.update(piece), sha()),
      sha256,
    );
  const { mode, append, owner, group, attributes } = wish;
  // One frame and one round trip, unless the request needs append, an owner or attributes.
  if (append !== true && owner === undefined && group === undefined && attributes === undefined)
    return entryInfo(await about(exchange, path, files.write(path, body, mode)), path);
  return upload(files, exchange, request, async (open) => open.write(body));
}

export async function putFile(files: GuestFiles, exchange: Exchange): Promise<EntryInfo> {
  const request = readWrite(exchange);
  const hash = request.sha256 === undefined ? undefined : sha();
  return upload(files, exchange, request, async (open) => {
    for await (const pieces of bodyPieces(exchange)) {
      if (hash) for (const piece of pieces) hash.update(piece);
      await open.write(pieces);
    }
    if (hash) checkSha256(hash, request.sha256 as string);
  });
}

/** `fill` writes the bytes; if it throws, no file is made. */
async function upload(
  files: GuestFiles,
  exchange: Exchange,
  { path, wish, subjects }: WriteRequest,
  fill: (open: GuestUpload) => Promise<void>,
): Promise<EntryInfo> {
  const open = await about(exchange, path, files.upload(path, wish), subjects);
  try {
    await about(exchange, path, fill(open), subjects);
    const { attributes } = wish;
    const written = await about(exchange, path, open.commit(), subjects);
    return attributes === undefined
      ? entryInfo(written, path)
      : entryInfo({ ...written, attributes }, path, true);
  } catch (error) {
    await open.abandon().catch(() => undefined); // fails only if the guest is gone, and the file with it
    throw error;
  }
}

function readWrite(exchange: Exchange): WriteRequest {
  const path = queryPath(exchange);
  if (endsInSlash(path) || path === "/")
    throw new ClocheError("invalid_argument", "path must name a file, not end with a slash");
  const { "x-file-mode": mode } = exchange.request.headers;
  const [owner, group] = [account(exchange, "x-file-owner"), account(exchange, "x-file-group")];
  const append = queryBoolean(exchange.query, "append") ?? false;
  const attributes = readAttributes(exchange.request.headers["x-file-attributes"]);
  if (append && attributes !== undefined)
    throw new ClocheError("invalid_argument", "x-file-attributes cannot be given with append=true");
  return {
    path,
    wish: {
      mode: mode === undefined ? undefined : readMode(mode, "x-file-mode"),
      append,
      owner,
      group,
      attributes,
    },
    sha256: readSha256(exchange.request.headers["x-content-sha256"]),
    subjects: {
      owner: ["x-file-owner", owner ?? ""],
      group: ["x-file-group", group ?? ""],
      attributes: ["x-file-attributes", pathText(path)],
    },
  };
}

function account(exchange: Exchange, header: string): string | undefined {
  const value = exchange.request.headers[header];
  return value === undefined ? undefined : accountName(value, header, false);
}

/** Octal digits. */
export function readMode(value: unknown, field: string): number {
  if (typeof value !== "string" || !/^[0-7]{1,4}$/.test(value)) {
    throw new ClocheError("invalid_argument", `${field} must be an octal string such as 0644`);
  }
  return Number.parseInt(value, 8);
}

const sha = (): Hash => createHash("sha256");

function readSha256(header: string | string[] | undefined): string | undefined {
  if (header === undefined) return undefined;
  if (typeof header !== "string" || !/^[0-9a-f]{64}$/i.test(header)) {
    throw new ClocheError("invalid_argument", "x-content-sha256 must be 64 hexadecimal digits");
  }
  return header.toLowerCase();
}

function checkSha256(hash: Hash, expected: string): void {
  const actual = hash.digest("hex");
  if (actual === expected) return;
  throw new ClocheError(
    "invalid_argument",
    `x-content-sha256: the body that came has the SHA-256 ${actual}, not ${expected}; nothing was changed`,
  );
}
