/**
 * Files that the agent reads and writes itself: those that its file server has open, and that are large. The file server alone opens by
 * path, with the users' root and their rights; what it opened, the agent opens again through procfs, so that the bytes of a large file do not
 * go through a socket. The file server tells what is no regular file, and could change its mind: whatever is none here is let go of.
 *
 * Owned by one guest. No descriptor outlives it (`letGo`): it would hold the disk.
 */
import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { GuestFileError } from "./errors.ts";

/** Below this a file goes through the file server: another open costs more than it saves. */
export const ownFromBytes = 1_048_576;
/** So many bytes are read or written at once. */
export const ownChunkBytes = 524_288;

export type OwnAccess = "read" | "write";

export class OwnFiles {
  readonly #pid: () => number;
  readonly #files = new Set<OwnFile>();
  readonly #opening = new Set<Promise<unknown>>();
  #lost: Error | undefined;

  /** `pid`: of the file server. */
  constructor(pid: () => number) {
    this.#pid = pid;
  }

  /** The file of a descriptor of the file server; undefined where it cannot be had, and then the file server reads and writes it. */
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

  /** Resolves when none is open any more; what is asked of one fails with `why` from now on. */
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

  /** What lies from `offset` on, in `into`; shorter only at the end of the file. */
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

  /** Waits for what is under way. */
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
