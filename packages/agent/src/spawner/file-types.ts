/** Files of a guest as the rest of the agent sees them, reached through its file server (native/guest/PROTOCOL.md). */

/** A path as text, or as bytes where a name is not UTF-8. Always absolute. */
export type GuestPath = string | Buffer;

export type EntryKind = "file" | "directory" | "symlink" | "fifo" | "socket" | "device";

/** lstat of an entry, with the names of its owner from the guest's accounts (the number as text where there is none). */
export interface GuestEntry {
  readonly path: Buffer;
  readonly kind: EntryKind;
  readonly sizeBytes: number;
  readonly modifiedAtMs: number;
  /** Permission bits with setuid, setgid and sticky: 0 to 0o7777. */
  readonly mode: number;
  readonly owner: string;
  readonly group: string;
  /** Empty where it is no symlink. */
  readonly symlinkTarget: Buffer;
  /** Its extended attributes of `user.*`; none unless they were asked for. */
  readonly attributes: readonly FileAttribute[];
}

export interface FileAttribute {
  /** `user.note`. */
  readonly name: string;
  readonly value: Buffer;
}

/** An open file. `close` it whatever happens. */
export interface GuestFile {
  /** Null where the system does not say (large files of procfs and the like): read until the end. */
  readonly sizeBytes: number | null;
  /** What tells this content from every other that the file had or will have; null where the system makes it up. */
  readonly version: { readonly tag: string; readonly modifiedAtMs: number } | null;
  /** Bytes from `offset`, at most `length`, none only at the end of the file. They may lie in `into`, where it has room for them. */
  read(offset: number, length: number, into?: Buffer): Promise<Buffer>;
  close(): void;
}

/** File operations inside a guest, as its root user (but for `as`). All reject with `GuestFileError`. */
export interface GuestFiles extends GuestFileChanges {
  lstat(path: GuestPath, withAttributes?: boolean): Promise<GuestEntry>;
  /** As lstat, of what a final symlink leads to. */
  stat(path: GuestPath, withAttributes?: boolean): Promise<GuestEntry>;
  /** Opens a regular file for reading, symlinks followed. Anything else is EISDIR or EINVAL and never blocks. */
  open(path: GuestPath, prefetchBytes?: number): Promise<GuestFile>;
  /** Replaces or creates a file in one step (symlinks followed, parents created). `mode` absent: kept, else 0644. Owner is kept. */
  write(path: GuestPath, data: Buffer | readonly Buffer[], mode?: number): Promise<GuestEntry>;
  remove(path: GuestPath, recursive: boolean): Promise<void>;
  list(
    path: GuestPath,
    depth: number,
    limit: number,
    withAttributes?: boolean,
  ): Promise<{ entries: GuestEntry[]; truncated: boolean }>;
  mkdir(path: GuestPath, parents: boolean): Promise<GuestEntry>;
  /** rename(2), and a copy across file systems. A destination that is a directory is EEXIST. */
  move(source: GuestPath, destination: GuestPath): Promise<GuestEntry>;
  /** Writes back all dirty data of the guest's file systems. */
  sync(): Promise<void>;
  /** As `write`, for who does not need to know what has become of it: owners' names are not looked up. */
  put(path: GuestPath, data: Buffer, mode: number): Promise<void>;
  /** What `ask` asks for before it returns is sent as one and carried out one after another. */
  together<Answers>(ask: () => Answers): Answers;
  /** Of the guest's own namespace: the file server is in it. */
  setHostname(hostname: string): Promise<void>;
}

/** Of a file that is written. All absent: as it was before, else root's (or whose rights it is done with) and 0644. */
export interface WriteWish {
  readonly mode?: number | undefined;
  /** To the end of the file that is there, rather than in its place. */
  readonly append?: boolean;
  /** By name or number; these need no rights of the one it is done as. */
  readonly owner?: string | undefined;
  readonly group?: string | undefined;
  /** All that it shall have; absent: none. Not where it is appended to. */
  readonly attributes?: readonly FileAttribute[] | undefined;
}

/** A file that is being written; nothing of it can be seen before `commit`, nothing is left after `abandon`. */
export interface GuestUpload {
  /** The next bytes. Resolves when more may be given; rejects as soon as any of them could not be written. */
  write(pieces: readonly Buffer[]): Promise<void>;
  /** Puts it in place in one step. */
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
  /** Of `renamed`: where it was; else empty. */
  readonly from: Buffer;
}

/** Events of one watch. */
export interface GuestWatch {
  /** Of what is watched. */
  readonly type: WatchedKind;
  /**
   * The next ones, in order; undefined: what was watched is gone. Events that nobody asks for wait in the guest, which tells of
   * those that it had to drop as an `overflow`.
   */
  next(): Promise<readonly FileEvent[] | undefined>;
  close(): void;
}

interface GuestFileChanges {
  /** The same, with that user's rights (`SpawnRequest.user`); what is made is his. */
  as(user: string): GuestFiles;
  /** A write of any size. */
  upload(path: GuestPath, wish: WriteWish): Promise<GuestUpload>;
  /** A directory only where `recursive`. A destination that is a directory is EEXIST, a file there is replaced. */
  copy(source: GuestPath, destination: GuestPath, recursive: boolean): Promise<GuestEntry>;
  chmod(path: GuestPath, mode: number, recursive: boolean): Promise<GuestEntry>;
  /** By name or number; empty: left as it is. */
  chown(path: GuestPath, user: string, group: string, recursive: boolean): Promise<GuestEntry>;
  watch(path: GuestPath, recursive: boolean): Promise<GuestWatch>;
}
