/**
 * Large files that the agent reads and writes itself. Only the file server opens files by path, with the users' root and rights. The agent
 * opens the file server's descriptor again through procfs, so that the bytes of a large file do not pass through a socket. The file server
 * is not trusted about the type: a descriptor that is no regular file is closed at once.
 *
 * Owned by one guest. No descriptor outlives the guest (`letGo`), because it would hold the disk.
 */
import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { GuestFileError } from "./errors.ts";

/** Smaller files go through the file server: a second open would cost more than it saves. */
export const ownFromBytes = 1_048_576;
/** Bytes read or written at once. */
export const ownChunkBytes = 524_288;

export type OwnAccess = "read" | "write";

export class OwnFiles {
  readonly #pid: () => number;
  readonly #files = new Set<OwnFile>();
  readonly #opening = new Set<Promise<unknown>>();
  #lost: Error | undefined;

  /** `pid`: answers the pid of the file server. */
  constructor(pid: () => number) {
    this.#pid = pid;
  }

  /** Opens the file of a file server's descriptor. Undefined if this fails: then use the file server. */
  async open(descriptor: number, access: OwnAccess): Promise<OwnFile | undefined> {
    const opening = this.#open(descriptor, access);
    this.#opening.add(opening);
    try {
      return await opening;
    } catch {
      return undefined;
    } finally {
      this.#opening.delete(opening);
    }
  }

  async #open(descriptor: number, access: OwnAccess): Promise<OwnFile | undefined> {
    if (this.#lost) return undefined;
    const flags = access === "read" ? constants.O_RDONLY : constants.O_WRONLY;
    const path = `/proc/${this.#pid()}/fd/${descriptor}`;
    const file = await open(path, flags | constants.O_NONBLOCK | constants.O_NOCTTY);
    const own: OwnFile = new OwnFile(file, {
      lost: () => this.#lost,
      onClosed: () => this.#files.delete(own),
    });
    this.#files.add(own);
    if (await own.isRegular()) return own;
    await own.close();
    return undefined;
  }

  /** Closes all files; resolves when none is open. Later operations fail with `why`. */
  async letGo(why: Error): Promise<void> {
    this.#lost = why;
    await Promise.allSettled(this.#opening);
    for (const file of this.#files) await file.close();
  }
}

/** Rejects with GuestFileError, as the file server does. */
export class OwnFile {
  readonly #file: FileHandle;
  readonly #owner: { lost: () => Error | undefined; onClosed: () => void };

  constructor(file: FileHandle, owner: { lost: () => Error | undefined; onClosed: () => void }) {
    this.#file = file;
    this.#owner = owner;
  }

  async isRegular(): Promise<boolean> {
    return (await this.#failing(this.#file.stat())).isFile();
  }

  async write(pieces: readonly Buffer[], bytes: number, offset: number): Promise<void> {
    const { bytesWritten } = await this.#failing(this.#file.writev(pieces, offset));
    if (bytesWritten === bytes) return;
    const rest = Buffer.concat(pieces).subarray(bytesWritten);
    for (let done = 0; done < rest.length; ) {
      const at = offset + bytesWritten + done;
      done += (await this.#failing(this.#file.write(rest, done, rest.length - done, at))).bytesWritten;
    }
  }

  /** Reads from `offset` into `into`; shorter only at the end of the file. */
  async read(into: Buffer, offset: number): Promise<Buffer> {
    let have = 0;
    while (have < into.length) {
      const { bytesRead } = await this.#failing(
        this.#file.read(into, have, into.length - have, offset + have),
      );
      if (bytesRead === 0) break;
      have += bytesRead;
    }
    return into.subarray(0, have);
  }

  /** Waits for operations under way, then closes the file. */
  async close(): Promise<void> {
    await this.#file.close().catch(() => undefined);
    this.#owner.onClosed();
  }

  async #failing<T>(operation: Promise<T>): Promise<T> {
    try {
      return await operation;
    } catch (error) {
      const { errno } = error as NodeJS.ErrnoException;
      throw this.#owner.lost() ?? new GuestFileError(Math.abs(errno ?? 5), "path", `errno ${errno}`);
    }
  }
}
