/**
 * A file that log lines are appended to. Lines are gathered and written together, because a system call for each
 * request would cost as much as the request. Nothing is synced, because that would block the event loop for as long as
 * the disk takes.
 *
 * A file that is full becomes <path>.1, the former .1 becomes .2, and so on; the oldest goes. Each step is a rename, so that a kill at
 * any moment leaves at most a number free. A file whose name is gone (an operator's own rotation) is made again.
 */
import { closeSync, fstatSync, mkdirSync, openSync, renameSync, rmSync, statSync, writeSync } from "node:fs";
import { dirname } from "node:path";

const gatheredChars = 4_096;
const gatheredMs = 100;
/**
 * A log that cannot be written (a full disk) must not fill the memory: only the newest characters up to this are kept.
 */
const waitingChars = 4 * 1024 * 1024;

export interface LogFileLimits {
  /** A larger file is replaced by a new one. */
  bytes: number;
  /** Full files that are kept beside it. */
  files: number;
}
const defaultLimits: LogFileLimits = { bytes: 64 * 1024 * 1024, files: 5 };
/** How often the name of the file is looked up. */
const checkEveryMs = 5_000;

export class LogFile {
  readonly #path: string;
  readonly #limits: LogFileLimits;
  #descriptor: number;
  #bytes: number;
  #checkedAtMs = 0;
  readonly #timer: NodeJS.Timeout;
  readonly #atExit = (): void => this.flush();
  #waiting = "";

  /** Creates the file and its directories. Throws when that fails. */
  constructor(path: string, limits: LogFileLimits = defaultLimits) {
    this.#path = path;
    this.#limits = limits;
    mkdirSync(dirname(path), { recursive: true });
    this.#descriptor = openSync(path, "a", 0o640);
    this.#bytes = fstatSync(this.#descriptor).size;
    this.#timer = setInterval(() => this.flush(), gatheredMs).unref();
    process.on("exit", this.#atExit);
  }

  write(line: string): void {
    this.#waiting += line;
    if (this.#waiting.length >= gatheredChars) this.flush();
  }

  /** Writes the gathered lines. Lines that cannot be written are tried again with the next ones. */
  flush(): void {
    if (this.#waiting === "") return;
    const bytes = Buffer.from(this.#waiting);
    let written = 0;
    try {
      this.#rotate();
      while (written < bytes.length) written += writeSync(this.#descriptor, bytes, written);
      this.#bytes += written;
      this.#waiting = "";
    } catch {
      this.#waiting = bytes.subarray(written).toString().slice(-waitingChars);
    }
  }

  #rotate(): void {
    const isFull = this.#bytes >= this.#limits.bytes;
    if (!isFull && !this.#isGone()) return;
    if (isFull) {
      rmSync(`${this.#path}.${this.#limits.files}`, { force: true });
      for (let number = this.#limits.files - 1; number >= 0; number -= 1) {
        const from = number === 0 ? this.#path : `${this.#path}.${number}`;
        if (statSync(from, { throwIfNoEntry: false })) renameSync(from, `${this.#path}.${number + 1}`);
      }
    }
    const next = openSync(this.#path, "a", 0o640);
    closeSync(this.#descriptor);
    this.#descriptor = next;
    this.#bytes = fstatSync(next).size;
  }

  #isGone(): boolean {
    if (Date.now() - this.#checkedAtMs < checkEveryMs) return false;
    this.#checkedAtMs = Date.now();
    return statSync(this.#path, { throwIfNoEntry: false })?.ino !== fstatSync(this.#descriptor).ino;
  }

  close(): void {
    this.flush();
    clearInterval(this.#timer);
    process.off("exit", this.#atExit);
    closeSync(this.#descriptor);
  }
}
