import type {
  EntryInfo,
  ExistsResponse,
  FileLink,
  FileLinkRequest,
  ListResponse,
  OkResponse,
} from "@cloche/protocol";
import { bodyOf, type DataPlane } from "./data-plane.ts";
import type { FileWatch } from "./file-watch.ts";
import type { FetchResponse } from "./fetch.ts";
import type { CallOptions } from "./transport.ts";

/** What can be written: text goes as UTF-8. */
export type FileContent = string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array>;

/** What can be uploaded: also pieces of any number, which are asked for as fast as they are taken. */
export type UploadContent = FileContent | AsyncIterable<Uint8Array>;

/** Options of every call on files. */
export interface FileOptions extends CallOptions {
  /**
   * A Unix user of the sandbox by name or number, with `:group` in place of the user's own groups. The call then has that user's
   * rights, and what it makes is the user's. `permission_denied` (403) where they do not suffice. Default: root.
   */
  asUser?: string | undefined;
}

/** What a file that is written shall be. */
export interface WriteOptions extends FileOptions {
  /** Octal digits, `"0755"`. Default: as it was, else 0644. */
  mode?: string | undefined;
  /** Name or number. Default: as it was, else root or `asUser`. */
  owner?: string | undefined;
  /** Name or number. Default: as `owner`. */
  group?: string | undefined;
  /**
   * Extended attributes, all that it shall have: names of ASCII that begin with `user.`, values in base64. Names, values and 20
   * bytes for each: at most 4,000 bytes, more is `resource_exhausted` (413). Not of `append`. Default: none.
   */
  attributes?: Record<string, string> | undefined;
  /** SHA-256 of the content in hexadecimal digits. Other content is `invalid_argument` (400) and changes nothing. */
  sha256?: string | undefined;
}

/** What the headers of a file say of it. */
export interface FileHead {
  /** Bytes; undefined for what the system makes up, as in /proc. */
  size: number | undefined;
  /** Another one for each version of the content; undefined as `size`. */
  etag: string | undefined;
  /** Of the content; undefined as `size`. */
  lastModified: Date | undefined;
}

/**
 * Files of a sandbox. Every path is absolute; all act as root unless `asUser` says otherwise. No such file:
 * `not_found`.
 */
export class Files {
  readonly #dataPlane: DataPlane;

  constructor(dataPlane: DataPlane) {
    this.#dataPlane = dataPlane;
  }

  /**
   * Writes a file of up to 1,048,576 bytes, atomically; missing parent directories are created. Larger content:
   * `resource_exhausted` (413); use `upload`.
   */
  write(path: string, content: FileContent, options: WriteOptions = {}): Promise<EntryInfo> {
    return this.#dataPlane.json("POST", "/v1/files", {
      query: { path, as_user: options.asUser },
      body: content,
      headers: writeHeaders(options),
      signal: options.signal,
      repeatable: true, // the same bytes again are the same file
    });
  }

  /**
   * Writes a file of any size, atomically: until all of it is there nothing can be seen of it, and content that breaks off
   * changes nothing. Missing parent directories are created.
   */
  upload(path: string, content: UploadContent, options: WriteOptions = {}): Promise<EntryInfo> {
    return this.#put(path, content, options, {});
  }

  /** Adds to the end of a file, which is made where there is none. Content that breaks off adds nothing. */
  append(path: string, content: UploadContent, options: WriteOptions = {}): Promise<EntryInfo> {
    return this.#put(path, content, options, { append: true });
  }

  #put(
    path: string,
    content: UploadContent,
    options: WriteOptions,
    query: { append?: true },
  ): Promise<EntryInfo> {
    return this.#dataPlane.json("PUT", "/v1/files", {
      query: { path, ...query, as_user: options.asUser },
      body: isPieces(content) ? streamOf(content) : content,
      headers: writeHeaders(options),
      signal: options.signal,
      repeatable: query.append !== true, // twice appended is not once
    });
  }

  /** The bytes of a file. */
  async read(path: string, options: FileOptions = {}): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(await (await this.#get("GET", path, options)).arrayBuffer());
  }

  /** A file as text (UTF-8). */
  async readText(path: string, options: FileOptions = {}): Promise<string> {
    return (await this.#get("GET", path, options)).text();
  }

  /** A file of any size as a stream; `start` and `end` (inclusive) in bytes read a part. */
  async readStream(
    path: string,
    options: FileOptions & { start?: number; end?: number } = {},
  ): Promise<ReadableStream<Uint8Array>> {
    const { start, end } = options;
    const headers: Record<string, string> =
      start === undefined && end === undefined ? {} : { range: `bytes=${start ?? 0}-${end ?? ""}` };
    return bodyOf(await this.#get("GET", path, options, headers));
  }

  /** Size and version of a file, without its content. */
  async head(path: string, options: FileOptions = {}): Promise<FileHead> {
    const response = await this.#get("HEAD", path, options);
    await response.arrayBuffer();
    const { headers } = response;
    const [size, modified] = [headers.get("content-length"), headers.get("last-modified")];
    return {
      size: size === null ? undefined : Number(size),
      etag: headers.get("etag") ?? undefined,
      lastModified: modified === null ? undefined : new Date(modified),
    };
  }

  #get(
    method: "GET" | "HEAD",
    path: string,
    { asUser, signal }: FileOptions,
    headers: Record<string, string> = {},
  ): Promise<FetchResponse> {
    return this.#dataPlane.request(method, "/v1/files", {
      query: { path, as_user: asUser },
      headers,
      signal,
    });
  }

  /**
   * Entries of a directory, sorted by path; `depth` defaults to 1. `truncated`: there are more, deeper or beyond 10,000.
   * `attributes`: with their extended attributes.
   */
  list(
    path: string,
    options: FileOptions & { depth?: number; attributes?: boolean } = {},
  ): Promise<ListResponse> {
    const { depth, attributes, asUser, signal } = options;
    return this.#dataPlane.json("GET", "/v1/files/list", {
      query: { path, depth, attributes, as_user: asUser },
      signal,
    });
  }

  /** Of a final symlink what it is itself, or with `follow` what it leads to. `attributes`: with its extended attributes. */
  stat(
    path: string,
    options: FileOptions & { follow?: boolean; attributes?: boolean } = {},
  ): Promise<EntryInfo> {
    const { follow, attributes, asUser, signal } = options;
    return this.#dataPlane.json("GET", "/v1/files/stat", {
      query: { path, follow, attributes, as_user: asUser },
      signal,
    });
  }

  /** Does not follow a final symlink; `entry_type` is empty for what is missing. */
  exists(path: string, options: FileOptions = {}): Promise<ExistsResponse> {
    const { asUser, signal } = options;
    return this.#dataPlane.json("GET", "/v1/files/exists", { query: { path, as_user: asUser }, signal });
  }

  /** `parents`: as `mkdir -p`. Without: `already_exists`, or `not_found` for a missing parent. */
  mkdir(path: string, options: FileOptions & { parents?: boolean } = {}): Promise<EntryInfo> {
    return this.#change("mkdir", { path, parents: options.parents }, options);
  }

  /** Replaces a destination that is a file; one that is a directory is 409. */
  move(source: string, destination: string, options: FileOptions = {}): Promise<EntryInfo> {
    return this.#change("move", { source, destination }, options);
  }

  /**
   * Keeps mode, owner, times and holes; replaces a destination that is a file, in one step. A directory needs `recursive`, and one
   * at the destination is 409.
   */
  copy(
    source: string,
    destination: string,
    options: FileOptions & { recursive?: boolean } = {},
  ): Promise<EntryInfo> {
    return this.#change("copy", { source, destination, recursive: options.recursive }, options);
  }

  /** `mode`: octal digits, `"0755"`. `recursive`: all below a directory too, but no symlinks. */
  chmod(path: string, mode: string, options: FileOptions & { recursive?: boolean } = {}): Promise<EntryInfo> {
    return this.#change("chmod", { path, mode, recursive: options.recursive }, options);
  }

  /** `user` and `group` by name or number, at least one of them. `recursive`: all below a directory too. */
  chown(
    path: string,
    owner: { user?: string | number; group?: string | number },
    options: FileOptions & { recursive?: boolean } = {},
  ): Promise<EntryInfo> {
    const { user, group } = owner;
    return this.#change("chown", { path, user, group, recursive: options.recursive }, options);
  }

  #change(what: string, json: object, { asUser, signal }: FileOptions): Promise<EntryInfo> {
    return this.#dataPlane.json("POST", `/v1/files/${what}`, { json, query: { as_user: asUser }, signal });
  }

  /** `recursive` is needed for a directory that is not empty. */
  delete(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<OkResponse> {
    const { recursive, asUser, signal } = options;
    return this.#dataPlane.json("DELETE", "/v1/files", {
      query: { path, recursive, as_user: asUser },
      signal,
      repeatable: false,
    });
  }

  /**
   * Hears of every change of a file, or of a directory and its entries (`recursive`: of all below it), from the moment at which it
   * resolves. `for await (const event of watch)` yields them; `await using watch = …` ends it with its block.
   */
  async watch(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<FileWatch> {
    const { FileWatch } = await import("./file-watch.ts");
    return FileWatch.open(this.#dataPlane, path, options);
  }

  /**
   * A link with which anybody, without a token, may read or write that one file, until it expires: `expires_in_seconds` 300 unless
   * given, at most 604,800; `once`: for one use. With `asUser` it has that user's rights.
   */
  link(path: string, options: FileOptions & Partial<Omit<FileLinkRequest, "path">> = {}): Promise<FileLink> {
    const { asUser, signal, operation = "read", ...fields } = options;
    const json = { path, operation, ...fields };
    return this.#dataPlane.json("POST", "/v1/files/link", { json, query: { as_user: asUser }, signal });
  }

  /** A tar of a directory as a stream, any size. */
  async pack(path: string, options: FileOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const { asUser, signal } = options;
    const query = { path, as_user: asUser };
    return bodyOf(await this.#dataPlane.request("GET", "/v1/files/archive", { query, signal }));
  }

  /** Unpacks a tar into a directory, which is created, any size. */
  async unpack(path: string, tar: UploadContent, options: FileOptions = {}): Promise<void> {
    const { asUser, signal } = options;
    const response = await this.#dataPlane.request("POST", "/v1/files/archive", {
      query: { path, as_user: asUser },
      body: isPieces(tar) ? streamOf(tar) : tar,
      headers: { "content-type": "application/x-tar" },
      signal,
    });
    await response.arrayBuffer();
  }
}

function writeHeaders({ mode, owner, group, attributes, sha256 }: WriteOptions): Record<string, string> {
  const wishes = {
    "x-file-mode": mode,
    "x-file-owner": owner,
    "x-file-group": group,
    "x-file-attributes": attributes && JSON.stringify(attributes),
    "x-content-sha256": sha256,
  };
  const given = Object.entries(wishes).filter((one): one is [string, string] => one[1] !== undefined);
  return { "content-type": "application/octet-stream", ...Object.fromEntries(given) };
}

/** What fetch does not take as it is. */
const isPieces = (content: UploadContent): content is AsyncIterable<Uint8Array> =>
  typeof content === "object" &&
  Symbol.asyncIterator in content &&
  !(content instanceof ReadableStream || content instanceof Blob);

/** `ReadableStream.from`, which browsers lack. */
function streamOf(pieces: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const iterator = pieces[Symbol.asyncIterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await iterator.next();
      if (done === true) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await iterator.return?.();
    },
  });
}
