/** Reads `POST /v1/files/link` (additions to the contract, Files). Throws `invalid_argument` naming the field. */
import type { IncomingMessage } from "node:http";
import { asBuffer } from "@cloche/base";
import { checkDataPlaneFields, ClocheError, GatheredBytes, limits } from "@cloche/protocol";
import type { Exchange } from "../exchange/exchange.ts";
import type { FileOperation } from "./file-link-token.ts";

export interface FileLinkRequest {
  /** Percent-encoded. */
  path: string;
  operation: FileOperation;
  expiresInSeconds: number;
  once: boolean;
  user: string | undefined;
}

const bad = (message: string): ClocheError => new ClocheError("invalid_argument", message);

export async function readFileLinkRequest(exchange: Exchange): Promise<FileLinkRequest> {
  const body = parseObject(await readSmallBody(exchange, limits.fileLinkBodyBytes));
  const { headers } = exchange.request;
  checkDataPlaneFields({ method: "POST", url: "/v1/files/link", headers }, body);
  const { operation, once } = body;
  if (operation !== "read" && operation !== "write") throw bad('operation must be "read" or "write"');
  if (once !== undefined && once !== null && typeof once !== "boolean")
    throw bad("once must be true or false");
  return {
    path: readPath(body),
    operation,
    expiresInSeconds: readSeconds(body["expires_in_seconds"]),
    once: once === true,
    user: readUser(exchange.request),
  };
}

function readSeconds(value: unknown): number {
  if (value === undefined || value === null) return limits.fileLinkSecondsDefault;
  if (typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= limits.fileLinkSeconds)
    return value;
  throw bad(`expires_in_seconds must be an integer from 1 to ${limits.fileLinkSeconds}`);
}

/** The bytes of a path, percent-encoded once. The agent checks the rest of its form when the link is used. */
function readPath(body: Record<string, unknown>): string {
  const { path, path_encoded: encoded } = body;
  const field = encoded === undefined || encoded === null ? "path" : "path_encoded";
  const value = field === "path" ? path : encoded;
  if (field === "path_encoded" && path !== undefined && path !== null)
    throw bad("path and path_encoded must not both be given");
  if (typeof value !== "string" || value === "")
    throw bad(`${field} is required: an absolute path such as /root/file.txt`);
  if (field === "path_encoded" && /%(?![0-9a-fA-F]{2})/.test(value))
    throw bad(`${field} is not percent-encoded`);
  const text =
    field === "path"
      ? escaped(Buffer.from(value))
      : value.replaceAll(/[^A-Za-z0-9%/._~-]+/g, (part) => escaped(Buffer.from(part)));
  const bytes = text.replaceAll(/%[0-9a-fA-F]{2}/g, "?").length;
  if (!/^(?:\/|%2F)/i.test(text)) throw bad(`${field} must be an absolute path`);
  if (/%00/.test(text)) throw bad(`${field} must not contain NUL characters`);
  if (bytes > limits.pathBytes) throw bad(`${field} must not be longer than ${limits.pathBytes} bytes`);
  return text;
}

const escaped = (bytes: Buffer): string =>
  bytes
    .toString("latin1")
    .replaceAll(
      /[^A-Za-z0-9/._~-]/g,
      (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`,
    );

/** The user, given as on all file routes; whether it exists is checked when the link is used. */
function readUser({ headers, url = "" }: IncomingMessage): string | undefined {
  const mark = url.indexOf("?");
  const asked = mark < 0 ? null : new URLSearchParams(url.slice(mark + 1)).get("as_user");
  const sent = headers["x-file-user"];
  const [field, user] = typeof sent === "string" ? ["x-file-user", sent] : ["as_user", asked];
  if (sent !== undefined && asked !== null && sent !== asked)
    throw bad("x-file-user and as_user must not name different users");
  if (user === null) return undefined;
  if (!/^[^\0:]+(?::[^\0:]+)?$/.test(user) || Buffer.byteLength(user) > limits.accountNameBytes)
    throw bad(`${field} must be a name or a number, such as www-data or 1000`);
  return user;
}

function parseObject(body: Buffer): Record<string, unknown> {
  if (body.length === 0) return {};
  let parsed: unknown;
  try {
    parsed = JSON.parse(body.toString());
  } catch (error) {
    throw new ClocheError("invalid_argument", "the request body is not valid JSON", { cause: error });
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed))
    throw bad("the request body must be a JSON object");
  return parsed as Record<string, unknown>;
}

/** Reads the whole body. Throws (413) when it is larger than `maxBytes`. */
function readSmallBody(exchange: Exchange, maxBytes: number): Promise<Buffer> {
  const { request } = exchange;
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
  const tooLarge = (): ClocheError =>
    new ClocheError("resource_exhausted", `the request body is larger than ${maxBytes} bytes`, {
      resource: "body",
    });
  if (Number(request.headers["content-length"] ?? 0) > maxBytes) return Promise.reject(tooLarge());
  if (!exchange.hasBody) return Promise.resolve(Buffer.alloc(0));
  const body = new GatheredBytes();
  exchange.sendContinueIfAsked();
  request.on("data", (chunk: Buffer) => {
    if (body.length + chunk.length > maxBytes) reject(tooLarge());
    else body.push(chunk);
  });
  request.once("end", () => {
    exchange.bodyOver();
    resolve(asBuffer(body.take()));
  });
  request.once("close", () => reject(new ClocheError("canceled", "the client went away")));
  return promise;
}
