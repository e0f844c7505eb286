import { drained } from "../http/drained.ts";
import type { Exchange } from "../http/exchange.ts";
import type { GuestFile } from "../spawner/index.ts";
import { timeOf } from "./entry-info.ts";

const chunkBytes = 262_144;

export interface ByteRange {
  start: number;
  /** The last byte, included. */
  end: number;
}

/**
 * The one range of a `Range` header that a file of this size can satisfy; `whole` where there is none to honour (absent,
 * malformed or several: the standard lets a server answer with everything), `none` where it lies outside (416).
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

/** `Last-Modified` and a strong `ETag`; none for what the system makes up. */
function versionHeaders(file: GuestFile): { etag?: string; "last-modified"?: string } {
  if (file.version === null) return {};
  return {
    etag: JSON.stringify(file.version.tag),
    "last-modified": timeOf(file.version.modifiedAtMs).toUTCString(),
  };
}

/** Streams a file, or the part of it that `Range` asks for, at the client's pace. For HEAD the headers of the whole. The caller closes the file. */
export async function sendFile(file: GuestFile, exchange: Exchange): Promise<void> {
  const { response, request } = exchange;
  const size = file.sizeBytes;
  const version = versionHeaders(file);
  if (version.etag !== undefined && namesVersion(request.headers["if-none-match"], version.etag)) {
    response.writeHead(304, version).end();
    return;
  }
  const head = request.method === "HEAD";
  // A range of another version than the one that the client has the rest of would make a file that never was.
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
  const next = (from: number): Promise<Buffer> =>
    file.read(from, Math.min(chunkBytes, end === null ? chunkBytes : end - from));
  let reading = end === 0 || offset === end ? undefined : next(offset);
  while (reading !== undefined && !response.destroyed) {
    const chunk = await reading;
    offset += chunk.length;
    const last = chunk.length === 0 || offset === end;
    reading = last ? undefined : next(offset); // read ahead while the client takes this one
    reading?.catch(() => undefined);
    if (chunk.length > 0 && !response.write(chunk)) await drained(response);
  }
  if (end !== null && offset < end)
    response.destroy(); // it shrank: the client must not take it for whole
  else response.end();
}
