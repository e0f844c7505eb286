import { isUtf8 } from "node:buffer";
import { ClocheError, limits } from "@cloche/protocol";
import type { Exchange } from "../http/exchange.ts";
import type { JsonObject } from "../http/fields.ts";
import { optionalString } from "../http/fields.ts";
import { percentDecoded } from "../http/query.ts";
import type { GuestPath } from "../spawner/index.ts";

/**
 * Checks an absolute path of a request (400 naming the field) and removes doubled slashes and `.`. Keeps `..`, which only the sandbox
 * can resolve past links, and a slash at the end, which demands a directory. Bytes that are UTF-8 become text.
 */
export function absolutePath(value: GuestPath | undefined, field: string): GuestPath {
  if (value === undefined || value.length === 0)
    throw new ClocheError(
      "invalid_argument",
      `${field} is required: an absolute path such as /root/file.txt`,
    );
  if (value.includes("\0"))
    throw new ClocheError("invalid_argument", `${field} must not contain NUL characters`);
  // latin1 has one character for each byte; slashes and dots are the same in both encodings.
  const text = typeof value === "string" ? value : value.toString("latin1");
  if (!text.startsWith("/"))
    throw new ClocheError(
      "invalid_argument",
      `${field} must be an absolute path, not ${JSON.stringify(clip(pathText(value)))}`,
    );
  if (Buffer.byteLength(value) > limits.pathBytes)
    throw new ClocheError("invalid_argument", `${field} must not be longer than ${limits.pathBytes} bytes`);
  const parts = text.split("/").filter((part) => part !== "" && part !== ".");
  const directory = /\/\.?$/.test(text) && parts.length > 0;
  const cleaned = `/${parts.join("/")}${directory ? "/" : ""}`;
  if (typeof value === "string") return cleaned;
  const bytes = Buffer.from(cleaned, "latin1");
  return isUtf8(bytes) ? bytes.toString() : bytes;
}

/** `path` of the query: any bytes, percent-encoded. */
export function queryPath(exchange: Exchange): GuestPath {
  return absolutePath(exchange.query.bytes("path"), "path");
}

/** A path in a JSON body: the field itself, or for a name that is not UTF-8 its bytes percent-encoded in `<field>_encoded`. */
export function bodyPath(body: JsonObject, field: string): GuestPath {
  const encoded = optionalString(body, `${field}_encoded`);
  const plain = optionalString(body, field);
  if (encoded === undefined) return absolutePath(plain, field);
  if (plain !== undefined)
    throw new ClocheError("invalid_argument", `${field} and ${field}_encoded must not both be given`);
  return absolutePath(percentDecoded(encoded, `${field}_encoded`), `${field}_encoded`);
}

export function endsInSlash(path: GuestPath): boolean {
  return path.length > 1 && (typeof path === "string" ? path.endsWith("/") : path.at(-1) === 0x2f);
}

/** A path as answers show it: without the slash at the end. */
export function shownPath(path: GuestPath): GuestPath {
  return endsInSlash(path) ? path.slice(0, -1) : path;
}

/** As text; bytes that are no UTF-8 become U+FFFD. */
export function pathText(path: GuestPath): string {
  return typeof path === "string" ? path : path.toString();
}

/** The path percent-encoded, as `path` of a query takes it; undefined if the text form is exact. */
export function encodedPath(path: GuestPath): string | undefined {
  if (typeof path === "string" || isUtf8(path)) return undefined;
  return path.toString("latin1").replaceAll(/[^A-Za-z0-9/._~-]/g, (byte) => {
    return `%${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`;
  });
}

/** Shortens a long path for a message. */
export function clip(path: string): string {
  return path.length > 200 ? `${path.slice(0, 200)}…` : path;
}
