import type { ServerResponse } from "node:http";
import type { Exchange } from "../http/exchange.ts";
import { type GuestFile, ownChunkBytes, ownFromBytes } from "../spawner/index.ts";
import { timeOf } from "./entry-info.ts";

export interface ByteRange {
  start: number;
  /** The last byte, included. */
  end: number;
}

/**
 * The range of a `Range` header for a file of this size. `whole` if the header is absent, malformed or has several ranges, for which the
 * standard lets a server answer with the whole file. `none` if the range is outside the file (416).
 */
export function readRange(header: string | undefined, sizeBytes: number): ByteRange | "whole" | "none" {
  const match = /^bytes=(\d*)-(\d*)$/.exec(header?.replaceAll(" ", "") ?? "");
  if (match === null) return "whole";
  const [, first = "", last = ""] = match;
  if (first === "" && last === "") return "whole";
  if (first === "") {
    const length = Math.min(Number(last), sizeBytes);
    return length === 0 ? "none" : { start: sizeBytes - length, end: sizeBytes - 1 };
  }
  const start = Number(first);
  if (last !== "" && Number(last) < start) return "whole";
  if (start >= sizeBytes) return "none";
  return { start, end: last === "" ? sizeBytes - 1 : Math.min(Number(last), sizeBytes - 1) };
}

/** Whether an `If-None-Match` names this version (RFC 9110: compared weakly). */
export function namesVersion(header: string | undefined, etag: string): boolean {
  if (header === undefined) return false;
  return header
    .split(",")
    .map((one) => one.trim().replace(/^W\//, ""))
    .some((one) => one === "*" || one === etag);
}

/** `Last-Modified` and a strong `ETag`; none for files that the system generates (such as procfs). */
function versionHeaders(file: GuestFile): { etag?: string; "last-modified"?: string } {
  if (file.version === null) return {};
  return {
    etag: JSON.stringify(file.version.tag),
    "last-modified": timeOf(file.version.modifiedAtMs).toUTCString(),
  };
}

/** Streams a file, or its `Range`, at the client's pace. HEAD gets the headers of the whole file. The caller closes the file. */
export async function sendFile(file: GuestFile, exchange: Exchange): Promise<void> {
  const { response, request } = exchange;
  const size = file.sizeBytes;
  const version = versionHeaders(file);
  if (version.etag !== undefined && namesVersion(request.headers["if-none-match"], version.etag)) {
    response.writeHead(304, version).end();
    return;
  }
  const head = request.method === "HEAD";
  // The client has the other parts of one version: a range of another version would give a mixed file.
  const condition = request.headers["if-range"];
  const other = condition !== undefined && condition !== version.etag;
  const range = size === null || head || other ? "whole" : readRange(request.headers.range, size);
  const headers: Record<string, string | number> = {
    ...version,
    "content-type": "application/octet-stream",
    "accept-ranges": size === null ? "none" : "bytes",
  };
  if (range === "none") {
    response.setHeader("content-range", `bytes */${size}`);
    exchange.sendJson(416, {
      code: "invalid_argument",
      message: `Range: the file has ${size} bytes, none of them in ${request.headers.range}`,
    });
    return;
  }
  let offset = 0;
  let end = size;
  if (range !== "whole") {
    offset = range.start;
    end = range.end + 1;
    headers["content-range"] = `bytes ${range.start}-${range.end}/${size}`;
  }
  if (end !== null) headers["content-length"] = end - offset;
  response.writeHead(range === "whole" ? 200 : 206, headers);
  if (head) {
    response.end();
    return;
  }
  const sentTo = await sendBytes(file, response, offset, end);
  if (end !== null && sentTo < end)
    response.destroy(); // the file shrank: the client must not take the answer for complete
  else response.end();
}

/**
 * Sends the bytes from `offset` to `end` (null: to the end of the file); answers the offset that it reached. While the client takes one
 * chunk, the next is read. Two buffers are used in turn, because in gVisor each page of a new buffer is a fault.
 */
async function sendBytes(
  file: GuestFile,
  response: ServerResponse,
  offset: number,
  end: number | null,
): Promise<number> {
  const room = end !== null && end - offset >= ownFromBytes ? ownChunkBytes : 0;
  const buffers = [Buffer.allocUnsafeSlow(room), Buffer.allocUnsafeSlow(room)] as const;
  const gone = new Promise<void>((resolve) => response.once("close", resolve));
  let at = offset;
  let before = Promise.resolve();
  for (let turn = 0; (end === null || at < end) && !response.destroyed; turn = 1 - turn) {
    const want = end === null ? ownChunkBytes : Math.min(ownChunkBytes, end - at);
    const chunk = await file.read(at, want, buffers[turn]);
    if (chunk.length === 0) break;
    at += chunk.length;
    const taken = new Promise<void>((resolve) => response.write(chunk, () => resolve()));
    await before;
    before = Promise.race([taken, gone]);
  }
  return at;
}
