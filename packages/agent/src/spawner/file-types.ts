/** The agent's interface to files of a guest, served by the guest's file server (native/guest/PROTOCOL.md). */

/** A path as text, or as bytes where a name is not UTF-8. Always absolute. */
export type GuestPath = string | Buffer;

export type EntryKind = "file" | "directory" | "symlink" | "fifo" | "socket" | "device";

/** lstat of an entry, with the names of owner and group from the guest's accounts (the number as text if there is no name). */
export interface GuestEntry {
  readonly path: Buffer;
  readonly kind: EntryKind;
  readonly sizeBytes: number;
  readonly modifiedAtMs: number;
  /** Permission bits with setuid, setgid and sticky: 0 to 0o7777. */
  readonly mode: number;
  readonly owner: string;
  readonly group: string;
  /** Empty if the entry is no symlink. */
  readonly symlinkTarget: Buffer;
  /** Its extended attributes of `user.*`; empty unless requested. */
  readonly attributes: readonly FileAttribute[];
}

export interface FileAttribute {
  /** `user.note`. */
  readonly name: string;
  readonly value: Buffer;
}

/** An open file. The caller must `close` it. */
export interface GuestFile {
  /** Null if the system does not tell the size (large files of procfs and the like): read until the end. */
  readonly sizeBytes: number | null;
  /** Identifies this content among all versions of the file; null for files that the system generates. */
  readonly version: { readonly tag: string; readonly modifiedAtMs: number } | null;
  /** At most `length` bytes from `offset`; empty only at the end of the file. They may be stored in `into` if it is large enough. */
  read(offset: number, length: number, into?: Buffer): Promise<Buffer>;
  close(): void;
}

/** File operations inside a guest, as its root user (except by `as`). All reject with `GuestFileError`. */
export interface GuestFiles extends GuestFileChanges {
  lstat(path: GuestPath, withAttributes?: boolean): Promise<GuestEntry>;
  /** As lstat, with a final symlink followed. */
  stat(path: GuestPath, withAttributes?: boolean): Promise<GuestEntry>;
  /** Opens a regular file for reading, symlinks followed. Anything else is EISDIR or EINVAL and never blocks. */
  open(path: GuestPath, prefetchBytes?: number): Promise<GuestFile>;
  /** Replaces or creates a file in one step (symlinks followed, parents created). Keeps the owner. `mode` absent: kept, else 0644. */
  write(path: GuestPath, data: Buffer | readonly Buffer[], mode?: number): Promise<GuestEntry>;
  remove(path: GuestPath, recursive: boolean): Promise<void>;
  list(
    path: GuestPath,
    depth: number,
    limit: number,
    withAttributes?: boolean,
  ): Promise<{ entries: GuestEntry[]; truncated: boolean }>;
  mkdir(path: GuestPath, parents: boolean): Promise<GuestEntry>;
  /** rename(2), or a copy across file systems. EEXIST if the destination is a directory. */
  move(source: GuestPath, destination: GuestPath): Promise<GuestEntry>;
  /** Writes back all dirty data of the guest's file systems. */
  sync(): Promise<void>;
  /** As `write`, without the resulting entry: owners' names are not looked up. */
  put(path: GuestPath, data: Buffer, mode: number): Promise<void>;
  /** Requests that `ask` makes before it returns are sent together and carried out in order. */
  together<Answers>(ask: () => Answers): Answers;
  /** Sets the host name of the guest's namespace, in which the file server runs. */
  setHostname(hostname: string): Promise<void>;
  /** Sets the boot id that programs of the guest read. */
  setBootId(bootId: string): Promise<void>;
}

/** Properties of a written file. Absent: kept, or for a new file root (or the acting user) and 0644. */
export interface WriteWish {
  readonly mode?: number | undefined;
  /** Append to the existing file instead of replacing it. */
  readonly append?: boolean;
  /** By name or number. The acting user needs no rights for this. */
  readonly owner?: string | undefined;
  readonly group?: string | undefined;
  /** All that it shall have; absent: none. Not where it is appended to. */
  readonly attributes?: readonly FileAttribute[] | undefined;
}

/** A file that is being written. It is invisible before `commit`; nothing is left after `abandon`. */
export interface GuestUpload {
  /** Writes the next bytes. Resolves when there is room for more; rejects once any bytes could not be written. */
  write(pieces: readonly Buffer[]): Promise<void>;
  /** Puts the file in place in one step. */
  commit(): Promise<GuestEntry>;
  /** Does nothing after `commit`. */
  abandon(): Promise<void>;
}

export type FileEventKind = "created" | "modified" | "deleted" | "renamed" | "attributes" | "overflow";
export type WatchedKind = "file" | "directory" | "symlink";

export interface FileEvent {
  readonly kind: FileEventKind;
  readonly path: Buffer;
  readonly type: WatchedKind;
  /** For `renamed`: the former path; else empty. */
  readonly from: Buffer;
}

/** Events of one watch. */
export interface GuestWatch {
  /** The type of the watched entry. */
  readonly type: WatchedKind;
  /**
   * The next events, in order; undefined: the watched entry is gone. Unread events wait in the guest, which reports dropped ones as an
   * `overflow`.
   */
  next(): Promise<readonly FileEvent[] | undefined>;
  close(): void;
}

interface GuestFileChanges {
  /** The same operations with that user's rights (`SpawnRequest.user`); new files belong to the user. */
  as(user: string): GuestFiles;
  /** A write of any size. */
  upload(path: GuestPath, wish: WriteWish): Promise<GuestUpload>;
  /** Copies a directory only with `recursive`. EEXIST if the destination is a directory; a file there is replaced. */
  copy(source: GuestPath, destination: GuestPath, recursive: boolean): Promise<GuestEntry>;
  chmod(path: GuestPath, mode: number, recursive: boolean): Promise<GuestEntry>;
  /** By name or number; empty: unchanged. */
  chown(path: GuestPath, user: string, group: string, recursive: boolean): Promise<GuestEntry>;
  watch(path: GuestPath, recursive: boolean): Promise<GuestWatch>;
}
