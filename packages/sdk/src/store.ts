import type {
  StoreBatchResponse,
  StoreDeleteResponse,
  StoreKeysResponse,
  StoreOperation,
  StoreSetResponse,
  StoreValue,
} from "@cloche/protocol";
import type { DataPlane } from "./data-plane.ts";
import { ClocheSdkError } from "./errors.ts";
import type { CallOptions } from "./transport.ts";

/** The JSON key-value store of a sandbox. */
export class Store {
  readonly #dataPlane: DataPlane;
  readonly #wrap: boolean;

  /** `wrapValues`: values other than JSON objects are stored as `{"v": value}`, so that a get always answers an object. */
  constructor(dataPlane: DataPlane, wrapValues = false) {
    this.#dataPlane = dataPlane;
    this.#wrap = wrapValues;
  }

  /** Sets or overwrites a key to any JSON up to 1 MiB. `ttl_seconds`: a positive integer; absent: no expiry. */
  set(
    key: string,
    value: unknown,
    options: CallOptions & { ttl_seconds?: number } = {},
  ): Promise<StoreSetResponse> {
    const { ttl_seconds, signal } = options;
    const json = { value: this.#wrapped(value), ttl_seconds };
    return this.#dataPlane.json("PUT", pathOf(key), { json, signal });
  }

  /** `not_found` for a key that does not exist or has expired. */
  get(key: string, options: CallOptions = {}): Promise<StoreValue> {
    return this.#dataPlane.json("GET", pathOf(key), options);
  }

  /** Removes a key; a missing key is no error. */
  delete(key: string, options: CallOptions = {}): Promise<StoreDeleteResponse> {
    return this.#dataPlane.json("DELETE", pathOf(key), { ...options, repeatable: false });
  }

  /** One page of keys, sorted. `limit`: default 1,000, at most 10,000; `cursor`: from the previous page. */
  keys(
    options: CallOptions & { prefix?: string; limit?: number; cursor?: string } = {},
  ): Promise<StoreKeysResponse> {
    const { signal, ...query } = options;
    return this.#dataPlane.json("GET", "/v1/store", { query, signal });
  }

  /** All keys; reads all pages. */
  async *allKeys(options: CallOptions & { prefix?: string } = {}): AsyncGenerator<string, void> {
    let cursor = "";
    do {
      const page = await this.keys({ ...options, limit: 10_000, ...(cursor === "" ? {} : { cursor }) });
      yield* page.keys;
      cursor = page.truncated ? page.cursor : "";
    } while (cursor !== "");
  }

  /** Applies up to 1,000 operations, all or none. */
  batch(operations: readonly StoreOperation[], options: CallOptions = {}): Promise<StoreBatchResponse> {
    const wrapped = operations.map((operation) =>
      operation.op === "set" ? { ...operation, value: this.#wrapped(operation.value) } : operation,
    );
    return this.#dataPlane.json("POST", "/v1/store/batch", { json: { operations: wrapped }, ...options });
  }

  #wrapped(value: unknown): unknown {
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    return this.#wrap && !isObject ? { v: value } : value;
  }
}

/** Refuses `.` and `..`: URL parsers resolve them, even percent-encoded, and the request would go to another path. */
function pathOf(key: string): string {
  if (key === "" || key === "." || key === "..") {
    throw new ClocheSdkError(
      `store key ${JSON.stringify(key)} is not allowed; use 1 to 512 bytes other than . and ..`,
    );
  }
  return `/v1/store/${encodeURIComponent(key)}`;
}
