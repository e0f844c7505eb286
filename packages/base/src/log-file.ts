// A file that log lines are appended to. Lines are gathered and written together, because a system call for each
// request would cost as much as the request. Nothing is synced, because that would block the event loop for as long as
// the disk takes.
import { closeSync, mkdirSync, openSync, writeSync } from "node:fs";
import { dirname } from "node:path";

const gatheredChars = 4_096;
const gatheredMs = 100;
/**
 * A log that cannot be written (a full disk) must not fill the memory: only the newest characters up to this are kept.
 */
const waitingChars = 4 * 1024 * 1024;

export class LogFile {
  readonly #descriptor: number;
  readonly #timer: NodeJS.Timeout;
  readonly #atExit = (): void => this.flush();
  #waiting = "";

  /** Creates the file and its directories. Throws when that fails. */
  constructor(path: string) {
    mkdirSync(dirname(path), { recursive: true });
    this.#descriptor = openSync(path, "a", 0o640);
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
      while (written < bytes.length) written += writeSync(this.#descriptor, bytes, written);
      this.#waiting = "";
    } catch {
      this.#waiting = bytes.subarray(written).toString().slice(-waitingChars);
    }
  }

  close(): void {
    this.flush();
    clearInterval(this.#timer);
    process.off("exit", this.#atExit);
    closeSync(this.#descriptor);
  }
}
