// A file of log lines, appended to. Lines are gathered (a system call for each request would cost as much as the request)
// and written in one piece; nothing is synced, for that would hold the event loop for as long as the disk takes.
import { closeSync, mkdirSync, openSync, writeSync } from "node:fs";
import { dirname } from "node:path";

const gatheredChars = 4_096;
const gatheredMs = 100;
/** A log that cannot be written (a full disk) must not fill the memory: what is beyond this is lost. */
const waitingChars = 4 * 1024 * 1024;

export class LogFile {
  readonly #descriptor: number;
  readonly #timer: NodeJS.Timeout;
  readonly #atExit = (): void => this.flush();
  #waiting = "";

  /** Makes the file and its directories. Throws where that is not possible. */
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

  /** Hands to the kernel what was gathered. What cannot be written is tried again with the next lines. */
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
