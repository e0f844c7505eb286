import type {
  EntryInfo,
  ExistsResponse,
  FileLink,
  FileLinkRequest,
  ListResponse,
  OkResponse,
} from "@cloche/protocol";
import { bodyOf, type DataPlane, type DataPlaneRequest } from "./data-plane.ts";
import type { FileWatch } from "./file-watch.ts";
import type { FetchResponse } from "./fetch.ts";
import type { CallOptions } from "./transport.ts";

/** Content of a file; text is written as UTF-8. */
export type FileContent = string | Uint8Array<ArrayBuffer> | Blob | ReadableStream<Uint8Array>;

/** Content of an upload: also any number of pieces, which are read at the pace of the upload. */
export type UploadContent = FileContent | AsyncIterable<Uint8Array>;

/** Options of every call on files. */
export interface FileOptions extends CallOptions {
  /**
   * A Unix user of the sandbox by name or number; `:group` replaces the user's own groups. The call has that user's rights, and new files
   * belong to the user. `permission_denied` (403) if the rights do not suffice. Default: root.
   */
  asUser?: string | undefined;
}

/** Properties of a file that is written. */
export interface WriteOptions extends FileOptions {
  /** Octal digits, `"0755"`. Default: unchanged, for a new file 0644. */
  mode?: string | undefined;
  /** Name or number. Default: unchanged, for a new file root or `asUser`. */
  owner?: string | undefined;
  /** Name or number. Default: as `owner`. */
  group?: string | undefined;
  /**
   * All extended attributes of the file: ASCII names that begin with `user.`, values in base64. At most 4,000 bytes for names, values and
   * 20 bytes for each attribute, else `resource_exhausted` (413). Not allowed with `append`. Default: none.
   */
  attributes?: Record<string, string> | undefined;
  /** SHA-256 of the content in hexadecimal digits. If it does not match: `invalid_argument` (400), and nothing is changed. */
  sha256?: string | undefined;
}

/** Size and version of a file, from its headers. */
export interface FileHead {
  /** Bytes; undefined for files that the system generates, as in /proc. */
  size: number | undefined;
  /** Different for each version of the content; undefined as `size`. */
  etag: string | undefined;
  /** Last change of the content; undefined as `size`. */
  lastModified: Date | undefined;
}

/**
 * Files of a sandbox. Every path is absolute. Calls act as root unless `asUser` is given. `not_found` if there is no such file.
 */
export class Files {
  readonly #dataPlane: DataPlane;

  constructor(dataPlane: DataPlane) {
    this.#dataPlane = dataPlane;
  }

  /**
   * Writes a file of up to 1,048,576 bytes, atomically; missing parent directories are created. For larger content, which is
   * `resource_exhausted` (413) here, use `upload`.
   */
  write(path: string, content: FileContent, options: WriteOptions = {}): Promise<EntryInfo> {
    return this.#send("POST", path, content, options);
  }

  /**
   * Writes a file of any size, atomically: it is invisible until it is complete, and interrupted content changes nothing. Missing parent
   * directories are created.
   */
  upload(path: string, content: UploadContent, options: WriteOptions = {}): Promise<EntryInfo> {
    return this.#send("PUT", path, content, options);
  }

  /** Appends to a file; creates the file if it is missing. Interrupted content appends nothing. */
  append(path: string, content: UploadContent, options: WriteOptions = {}): Promise<EntryInfo> {
    return this.#send("PUT", path, content, options, true);
  }

  #send(
    method: "POST" | "PUT",
    path: string,
    content: UploadContent,
    options: WriteOptions,
    append?: true,
  ): Promise<EntryInfo> {
    // Writing the same bytes twice gives the same file; appending does not.
    const more = { body: bodyFrom(content), headers: writeHeaders(options), repeatable: !append };
    return this.#dataPlane.json(method, files, acting({ path, append }, options, more));
  }

  /** The bytes of a file. */
  async read(path: string, options: FileOptions = {}): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(await (await this.#get(path, options)).arrayBuffer());
  }

  /** A file as text (UTF-8). */
  async readText(path: string, options: FileOptions = {}): Promise<string> {
    return (await this.#get(path, options)).text();
  }

  /** A file of any size as a stream; `start` and `end` (inclusive) in bytes read a part. */
  async readStream(
    path: string,
    options: FileOptions & { start?: number; end?: number } = {},
  ): Promise<ReadableStream<Uint8Array>> {
    const { start, end } = options;
    const headers: Record<string, string> =
      start === undefined && end === undefined ? {} : { range: `bytes=${start ?? 0}-${end ?? ""}` };
    return bodyOf(await this.#get(path, options, headers));
  }

  /** Size and version of a file, without its content. */
  async head(path: string, options: FileOptions = {}): Promise<FileHead> {
    const response = await this.#dataPlane.request("HEAD", files, acting({ path }, options));
    await response.arrayBuffer();
    const { headers } = response;
    const [size, modified] = [headers.get("content-length"), headers.get("last-modified")];
    return {
      size: size === null ? undefined : Number(size),
      etag: headers.get("etag") ?? undefined,
      lastModified: modified === null ? undefined : new Date(modified),
    };
  }

  #get(path: string, options: FileOptions, headers: Record<string, string> = {}): Promise<FetchResponse> {
    return this.#dataPlane.request("GET", files, acting({ path }, options, { headers }));
  }

  /**
   * Entries of a directory, sorted by path; `depth` defaults to 1. `truncated`: there are more, deeper or after the first 10,000.
   * `attributes`: with extended attributes.
   */
  list(
    path: string,
    options: FileOptions & { depth?: number; attributes?: boolean } = {},
  ): Promise<ListResponse> {
    const { depth, attributes } = options;
    return this.#dataPlane.json("GET", "/v1/files/list", acting({ path, depth, attributes }, options));
  }

  /** Describes a final symlink itself, or with `follow` its target. `attributes`: with extended attributes. */
  stat(
    path: string,
    options: FileOptions & { follow?: boolean; attributes?: boolean } = {},
  ): Promise<EntryInfo> {
    const { follow, attributes } = options;
    return this.#dataPlane.json("GET", "/v1/files/stat", acting({ path, follow, attributes }, options));
  }

  /** Does not follow a final symlink; `entry_type` is empty if nothing exists at the path. */
  exists(path: string, options: FileOptions = {}): Promise<ExistsResponse> {
    return this.#dataPlane.json("GET", "/v1/files/exists", acting({ path }, options));
  }

  /** `parents`: as `mkdir -p`. Without it: `already_exists` for an existing directory, `not_found` for a missing parent. */
  mkdir(path: string, options: FileOptions & { parents?: boolean } = {}): Promise<EntryInfo> {
    return this.#change("mkdir", { path, parents: options.parents }, options);
  }

  /** Replaces a file at the destination; a directory there is 409. */
  move(source: string, destination: string, options: FileOptions = {}): Promise<EntryInfo> {
    return this.#change("move", { source, destination }, options);
  }

  /**
   * Keeps mode, owner, times and holes. Replaces a file at the destination in one step; a directory there is 409. Copying a directory needs
   * `recursive`.
   */
  copy(
    source: string,
    destination: string,
    options: FileOptions & { recursive?: boolean } = {},
  ): Promise<EntryInfo> {
    return this.#change("copy", { source, destination, recursive: options.recursive }, options);
  }

  /** `mode`: octal digits, `"0755"`. `recursive`: also all entries below a directory, except symlinks. */
  chmod(path: string, mode: string, options: FileOptions & { recursive?: boolean } = {}): Promise<EntryInfo> {
    return this.#change("chmod", { path, mode, recursive: options.recursive }, options);
  }

  /** `user` and `group` by name or number, at least one of them. `recursive`: also all entries below a directory. */
  chown(
    path: string,
    owner: { user?: string | number; group?: string | number },
    options: FileOptions & { recursive?: boolean } = {},
  ): Promise<EntryInfo> {
    const { user, group } = owner;
    return this.#change("chown", { path, user, group, recursive: options.recursive }, options);
  }

  #change(what: string, json: object, options: FileOptions): Promise<EntryInfo> {
    return this.#dataPlane.json("POST", `/v1/files/${what}`, acting({}, options, { json }));
  }

  /** A directory that is not empty needs `recursive`. */
  delete(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<OkResponse> {
    const query = { path, recursive: options.recursive };
    return this.#dataPlane.json("DELETE", files, acting(query, options, { repeatable: false }));
  }

  /**
   * Watches a file, or a directory and its entries (`recursive`: all levels). Reports every change after it has resolved.
   * `for await (const event of watch)` yields the changes; `await using watch = …` ends the watch with its block.
   */
  async watch(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<FileWatch> {
    const { FileWatch } = await import("./file-watch.ts");
    return FileWatch.open(this.#dataPlane, path, options);
  }

  /**
   * A link with which anybody may read or write that one file without a token, until it expires. `expires_in_seconds`: default 300, at
   * most 604,800; `once`: for one use. With `asUser` the link has that user's rights.
   */
  link(path: string, options: FileOptions & Partial<Omit<FileLinkRequest, "path">> = {}): Promise<FileLink> {
    const { asUser, signal, operation = "read", ...fields } = options;
    const json = { path, operation, ...fields };
    return this.#dataPlane.json("POST", "/v1/files/link", acting({}, { asUser, signal }, { json }));
  }

  /** A tar of a directory as a stream, any size. */
  async pack(path: string, options: FileOptions = {}): Promise<ReadableStream<Uint8Array>> {
    return bodyOf(await this.#dataPlane.request("GET", archive, acting({ path }, options)));
  }

  /** Unpacks a tar of any size into a directory, which is created. */
  async unpack(path: string, tar: UploadContent, options: FileOptions = {}): Promise<void> {
    const more = { body: bodyFrom(tar), headers: { "content-type": "application/x-tar" } };
    const response = await this.#dataPlane.request("POST", archive, acting({ path }, options, more));
    await response.arrayBuffer();
  }
}

const files = "/v1/files";
const archive = "/v1/files/archive";

/** A request with the rights of `asUser`. */
const acting = (
  query: DataPlaneRequest["query"],
  { asUser, signal }: FileOptions,
  more?: DataPlaneRequest,
): DataPlaneRequest => ({ query: { ...query, as_user: asUser }, signal, ...more });

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

/** What fetch accepts: a stream in place of other iterables of pieces. */
const bodyFrom = (content: UploadContent): FileContent =>
  typeof content === "object" &&
  Symbol.asyncIterator in content &&
  !(content instanceof ReadableStream || content instanceof Blob)
    ? streamOf(content)
    : content;

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
