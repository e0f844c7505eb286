import type { EntryInfo, ExistsResponse, ListResponse, OkResponse } from "@cloche/protocol";
import { bodyOf, type DataPlane } from "./data-plane.ts";
import type { CallOptions } from "./transport.ts";

/** What can be written: text goes as UTF-8. */
export type FileContent = string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array>;

/** Files of a sandbox (spec/contract.md, Data plane: files). Every path is absolute; all act as root. */
export class Files {
  readonly #dataPlane: DataPlane;

  constructor(dataPlane: DataPlane) {
    this.#dataPlane = dataPlane;
  }

  /**
   * Writes a file of up to 1,048,576 bytes, atomically; missing parent directories are created. `mode`: octal, `"0755"`; default as it is, else 0644.
   * Larger content: `resource_exhausted` (413); use `unpack`.
   */
  write(
    path: string,
    content: FileContent,
    options: CallOptions & { mode?: string } = {},
  ): Promise<EntryInfo> {
    const { mode, signal } = options;
    return this.#dataPlane.json("POST", "/v1/files", {
      query: { path },
      body: content,
      headers: {
        "content-type": "application/octet-stream",
        ...(mode === undefined ? {} : { "x-file-mode": mode }),
      },
      signal,
      repeatable: true, // the same bytes again are the same file
    });
  }

  /** The bytes of a file. `not_found` where there is none. */
  async read(path: string, options: CallOptions = {}): Promise<Uint8Array<ArrayBuffer>> {
    const response = await this.#dataPlane.request("GET", "/v1/files", { query: { path }, ...options });
    return new Uint8Array(await response.arrayBuffer());
  }

  /** A file as text (UTF-8). */
  async readText(path: string, options: CallOptions = {}): Promise<string> {
    const response = await this.#dataPlane.request("GET", "/v1/files", { query: { path }, ...options });
    return response.text();
  }

  /** A file of any size as a stream; `start` and `end` (inclusive) in bytes read a part. */
  async readStream(
    path: string,
    options: CallOptions & { start?: number; end?: number } = {},
  ): Promise<ReadableStream<Uint8Array>> {
    const { start, end, signal } = options;
    const headers: Record<string, string> =
      start === undefined && end === undefined ? {} : { range: `bytes=${start ?? 0}-${end ?? ""}` };
    return bodyOf(await this.#dataPlane.request("GET", "/v1/files", { query: { path }, headers, signal }));
  }

  /** Entries of a directory, sorted by path; `depth` defaults to 1. `truncated`: there are more, deeper or beyond 10,000. */
  list(path: string, options: CallOptions & { depth?: number } = {}): Promise<ListResponse> {
    const { depth, signal } = options;
    return this.#dataPlane.json("GET", "/v1/files/list", { query: { path, depth }, signal });
  }

  /** Does not follow a final symlink. */
  stat(path: string, options: CallOptions = {}): Promise<EntryInfo> {
    return this.#dataPlane.json("GET", "/v1/files/stat", { query: { path }, ...options });
  }

  /** Does not follow a final symlink; `entry_type` is empty for what is missing. */
  exists(path: string, options: CallOptions = {}): Promise<ExistsResponse> {
    return this.#dataPlane.json("GET", "/v1/files/exists", { query: { path }, ...options });
  }

  /** `parents`: as `mkdir -p`. Without: `already_exists`, or `not_found` for a missing parent. */
  mkdir(path: string, options: CallOptions & { parents?: boolean } = {}): Promise<EntryInfo> {
    const { parents, signal } = options;
    return this.#dataPlane.json("POST", "/v1/files/mkdir", { json: { path, parents }, signal });
  }

  /** Replaces a destination that is a file; one that is a directory is 409. */
  move(source: string, destination: string, options: CallOptions = {}): Promise<EntryInfo> {
    return this.#dataPlane.json("POST", "/v1/files/move", { json: { source, destination }, ...options });
  }

  /** `recursive` is needed for a directory that is not empty. */
  delete(path: string, options: CallOptions & { recursive?: boolean } = {}): Promise<OkResponse> {
    const { recursive, signal } = options;
    return this.#dataPlane.json("DELETE", "/v1/files", {
      query: { path, recursive },
      signal,
      repeatable: false,
    });
  }

  /** A tar of a directory as a stream, any size (added: `GET /v1/files/archive`). */
  async pack(path: string, options: CallOptions = {}): Promise<ReadableStream<Uint8Array>> {
    return bodyOf(await this.#dataPlane.request("GET", "/v1/files/archive", { query: { path }, ...options }));
  }

  /** Unpacks a tar into a directory, which is created, any size (added: `POST /v1/files/archive`). */
  async unpack(path: string, tar: FileContent, options: CallOptions = {}): Promise<void> {
    const response = await this.#dataPlane.request("POST", "/v1/files/archive", {
      query: { path },
      body: tar,
      headers: { "content-type": "application/x-tar" },
      ...options,
    });
    await response.arrayBuffer();
  }
}
