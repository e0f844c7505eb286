/**
 * Texts by key in one file on a tmpfs, one line for each change: an append to an open file takes a tenth of the time of
 * replacing a file. Survives a crash of the process; a line that the crash cut off counts as not written.
 */
import {
  closeSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";

/** From this size on, the file is rewritten when less than a quarter of it is still valid. */
const rewriteFromBytes = 262_144;

/** Keys must have no white space, texts no line breaks. For one process at a time. */
export class KeyedLog {
  readonly #path: string;
  readonly #texts = new Map<string, string>();
  #file: number | undefined;
  #bytes = 0;

  constructor(path: string) {
    this.#path = path;
  }

  /** Reads the file; the log is empty before that. Repeatable. */
  open(): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
    this.#texts.clear();
    for (const line of wholeLines(this.#path)) {
      const end = line.indexOf(" ");
      if (end < 0) this.#texts.delete(line);
      else this.#texts.set(line.slice(0, end), line.slice(end + 1));
    }
    mkdirSync(dirname(this.#path), { recursive: true, mode: 0o700 });
    this.#rewrite();
  }

  get(key: string): string | undefined {
    return this.#texts.get(key);
  }

  entries(): [string, string][] {
    return [...this.#texts];
  }

  set(key: string, text: string): void {
    this.#append(`${key} ${text}\n`);
    this.#texts.set(key, text);
    this.#shrink();
  }

  delete(key: string): void {
    if (!this.#texts.has(key)) return;
    this.#append(`${key}\n`);
    this.#texts.delete(key);
    this.#shrink();
  }

  /** Removes the file if the log is empty. */
  close(): void {
    if (this.#file === undefined) return;
    closeSync(this.#file);
    this.#file = undefined;
    if (this.#texts.size === 0) rmSync(this.#path, { force: true });
  }

  #append(line: string): void {
    if (this.#file === undefined) throw new Error(`${this.#path} is not open`);
    const bytes = Buffer.from(line);
    let written = 0;
    try {
      while (written < bytes.length) written += writeSync(this.#file, bytes, written);
    } catch (error) {
      ftruncateSync(this.#file, this.#bytes);
      throw error;
    }
    this.#bytes += bytes.length;
  }

  #shrink(): void {
    if (this.#bytes < rewriteFromBytes) return;
    let live = 0;
    for (const text of this.#texts.values()) live += text.length;
    if (live * 4 < this.#bytes) this.#rewrite();
  }

  #rewrite(): void {
    const lines = this.entries().map(([key, text]) => `${key} ${text}\n`);
    const content = Buffer.from(lines.join(""));
    writeFileSync(`${this.#path}.new`, content, { mode: 0o600 });
    renameSync(`${this.#path}.new`, this.#path);
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = openSync(this.#path, "a", 0o600);
    this.#bytes = content.length;
  }
}

function wholeLines(path: string): string[] {
  try {
    return readFileSync(path, "utf8").split("\n").slice(0, -1);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
    throw error;
  }
}
