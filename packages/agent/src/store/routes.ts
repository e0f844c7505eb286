import {
  ClocheError,
  ignoresUnknownFields,
  limits,
  type StoreBatchResponse,
  type StoreDeleteResponse,
  type StoreKeysResponse,
  type StoreSetResponse,
  unknownField,
} from "@cloche/protocol";
import { type Exchange, JsonText } from "../http/exchange.ts";
import { queryInteger } from "../http/query.ts";
import type { Route } from "../http/router.ts";
import { JsonScanner } from "./json-scanner.ts";
import { keyBytes, keyOfPath } from "./keys.ts";
import { missingKey, type Store, type StoreWrite } from "./store.ts";

/** The value and room for `ttl_seconds` and white space. */
const setBodyBytes = 4 * limits.storeValueBytes;

/** Routes of the key-value store (spec/contract.md, Data plane: store). */
export function storeRoutes(store: Store, now: () => number): Route[] {
  return [
    { method: "PUT", path: "/v1/store/*", handle: (exchange) => set(store, exchange, now) },
    { method: "GET", path: "/v1/store/*", handle: (exchange) => get(store, exchange) },
    { method: "DELETE", path: "/v1/store/*", handle: (exchange) => remove(store, exchange) },
    { method: "GET", path: "/v1/store", handle: (exchange) => list(store, exchange) },
    { method: "POST", path: "/v1/store/batch", handle: (exchange) => batch(store, exchange, now) },
  ];
}

async function set(store: Store, exchange: Exchange, now: () => number): Promise<StoreSetResponse> {
  const key = keyOfPath(exchange.params["*"] ?? "");
  const scanner = objectScanner(await exchange.readBody(setBodyBytes));
  const fields: SetFields = {};
  const unknown = unknownOf(exchange, scanner);
  scanner.object((name) => {
    if (!readSetField(scanner, name, fields, "")) unknown("", name, ["value", "ttl_seconds"]);
  });
  scanner.end();
  const write = setWrite(key, fields, "", now());
  await store.apply([write]);
  return { ok: true, expires_at: timestamp(write.expiresAtMs) };
}

function get(store: Store, exchange: Exchange): JsonText {
  const key = keyOfPath(exchange.params["*"] ?? "");
  const entry = store.get(key);
  if (entry === undefined) throw missingKey(key);
  const expiresAt = JSON.stringify(timestamp(entry.expiresAtMs));
  return new JsonText(`{"value":${entry.value.toString("utf8")},"expires_at":${expiresAt}}`);
}

async function remove(store: Store, exchange: Exchange): Promise<StoreDeleteResponse> {
  const key = keyOfPath(exchange.params["*"] ?? "");
  const [deleted = false] = await store.apply([{ op: "delete", key }]);
  return { deleted, ok: true };
}

function list(store: Store, exchange: Exchange): StoreKeysResponse {
  const prefix = Buffer.from(exchange.query.get("prefix") ?? "", "utf8");
  const limit = queryInteger(exchange.query, "limit", 1, limits.storeListKeys) ?? limits.storeListKeysDefault;
  const { keys, more } = store.list(prefix, limit, readCursor(exchange.query.get("cursor")));
  const last = keys.at(-1);
  return {
    keys: keys.map((key) => key.toString("utf8")),
    truncated: more,
    cursor: more && last !== undefined ? last.toString("base64url") : "",
  };
}

async function batch(store: Store, exchange: Exchange, now: () => number): Promise<StoreBatchResponse> {
  const body = await exchange.readBody(limits.storeBatchBodyBytes);
  const writes = readBatch(body, exchange, now());
  await store.apply(writes);
  return { applied: writes.length, ok: true };
}

/** The writes of a batch body. Errors name the wrong operation and field. */
function readBatch(body: Buffer, exchange: Exchange, nowMs: number): StoreWrite[] {
  const scanner = objectScanner(body);
  const unknown = unknownOf(exchange, scanner);
  let writes: StoreWrite[] | undefined;
  scanner.object((name) => {
    if (name !== "operations") return unknown("", name, ["operations"]);
    const found: StoreWrite[] = [];
    writes = found;
    if (scanner.peek() !== "[") throw wrong("operations", "an array of operations");
    scanner.array((index) => {
      if (index >= limits.storeBatchOperations) {
        throw tooLarge(`operations holds more than ${limits.storeBatchOperations} operations`);
      }
      found.push(readOperation(scanner, unknown, `operations[${index}]`, nowMs));
    });
  });
  scanner.end();
  if (writes === undefined) {
    throw new ClocheError("invalid_argument", "operations is required (an array of operations)");
  }
  return writes;
}

/** Handles a field of this name, which is not known: refuses it, or passes over its value. */
type Unknown = (at: string, name: string, known: readonly string[]) => void;

const unknownOf =
  ({ request }: Exchange, scanner: JsonScanner): Unknown =>
  (at, name, known) => {
    if (!ignoresUnknownFields(request.headers)) throw unknownField(at, name, known);
    scanner.value();
  };

/** A scanner at the object of a body; an empty body counts as `{}`. */
function objectScanner(body: Buffer): JsonScanner {
  const scanner = new JsonScanner(body.length === 0 ? Buffer.from("{}") : body);
  if (scanner.peek() !== "{") throw notAnObject("the request body");
  return scanner;
}

function readOperation(scanner: JsonScanner, unknown: Unknown, at: string, nowMs: number): StoreWrite {
  const fields: SetFields & { op?: unknown; key?: unknown } = {};
  if (scanner.peek() !== "{") throw notAnObject(at);
  scanner.object((name) => {
    if (name === "op") fields.op = scanner.scalar();
    else if (name === "key") fields.key = scanner.scalar();
    else if (!readSetField(scanner, name, fields, `${at}.`))
      unknown(`${at}.`, name, ["op", "key", "value", "ttl_seconds"]);
  });
  if (fields.op !== "set" && fields.op !== "delete") throw wrong(`${at}.op`, '"set" or "delete"');
  if (typeof fields.key !== "string") throw wrong(`${at}.key`, "a string");
  const key = keyBytes(fields.key, `${at}.key`);
  return fields.op === "delete" ? { op: "delete", key } : setWrite(key, fields, `${at}.`, nowMs);
}

interface SetFields {
  value?: Buffer;
  ttlSeconds?: number;
}

/** False: the field is not known, and was not read. */
function readSetField(scanner: JsonScanner, name: string, fields: SetFields, at: string): boolean {
  if (name === "value") {
    fields.value = scanner.value();
  } else if (name === "ttl_seconds") {
    const ttl = scanner.scalar();
    if (ttl === null) delete fields.ttlSeconds;
    else if (isTtl(ttl)) fields.ttlSeconds = ttl;
    else throw wrong(`${at}ttl_seconds`, `an integer from 1 to ${limits.storeTtlSeconds}`);
  } else return false;
  return true;
}

const isTtl = (value: unknown): value is number =>
  typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= limits.storeTtlSeconds;

function setWrite(key: Buffer, fields: SetFields, at: string, nowMs: number): StoreWrite & { op: "set" } {
  const { value, ttlSeconds } = fields;
  if (value === undefined) {
    throw new ClocheError("invalid_argument", `${at}value is required (any JSON, null too)`);
  }
  if (value.length > limits.storeValueBytes) {
    throw tooLarge(
      `${at}value has ${value.length} bytes of JSON; at most ${limits.storeValueBytes} are allowed`,
    );
  }
  const expiresAtMs = ttlSeconds === undefined ? null : nowMs + ttlSeconds * 1000;
  return { op: "set", key, value, expiresAtMs };
}

function readCursor(cursor: string | undefined): Buffer | undefined {
  if (cursor === undefined || cursor === "") return undefined;
  const key = Buffer.from(cursor, "base64url");
  if (key.toString("base64url") !== cursor) throw wrong("cursor", "the cursor of the page before");
  return key;
}

const timestamp = (ms: number | null): string | null => (ms === null ? null : new Date(ms).toISOString());
const wrong = (field: string, expected: string): ClocheError =>
  new ClocheError("invalid_argument", `${field} must be ${expected}`);
const notAnObject = (what: string): ClocheError => wrong(what, "a JSON object");
const tooLarge = (message: string): ClocheError =>
  new ClocheError("resource_exhausted", message, { resource: "body" });
