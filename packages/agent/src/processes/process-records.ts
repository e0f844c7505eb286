/**
 * What is known of processes, on the sandbox's disk: `cloche/processes.json`. A machine that ended with all that ran in it, and its
 * agent's memory, finds there what it had; of output only how much there was. Read once in the life of an agent, by a machine that
 * is still the same sandbox; a fork, whose agent has the memory of its source, and a sandbox made of a checkpoint leave it alone.
 *
 *     changed ──a moment──▶ writing ──▶ written          held: nothing is written, for the disk goes
 */
import { readFileSync } from "node:fs";
import { open, rename } from "node:fs/promises";
import type { ProcessInfo } from "@cloche/protocol";

export interface StoredProcess {
  info: ProcessInfo;
  keepSeconds: number;
}

interface StoredFile {
  sandbox_id: string;
  processes: StoredProcess[];
}

/** Changes of one moment are written together. */
const delayMs = 200;
/** Writing takes at most this part of the time. */
const share = 1 / 10;

export class ProcessRecords {
  readonly #path: string;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> | undefined;
  #make: (() => StoredFile) | undefined;
  #held = false;
  #lastWriteMs = 0;

  constructor(path: string) {
    this.#path = path;
  }

  /** What was stored for this sandbox; nothing where the file is another's, broken or missing. */
  load(sandboxId: string): StoredProcess[] {
    try {
      const file = JSON.parse(readFileSync(this.#path, "utf8")) as StoredFile;
      return file.sandbox_id === sandboxId ? file.processes : [];
    } catch {
      return [];
    }
  }

  /** Writes, in a moment, what `make` then answers. A disk that does not take it is no reason to fail. */
  saveSoon(make: () => StoredFile): void {
    this.#make = make;
    this.#arm();
  }

  /** Resolves when all that changed is written; nothing is until `release`. */
  async hold(): Promise<void> {
    this.#held = true;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#writing;
    if (this.#make !== undefined) await this.#write();
  }

  release(): void {
    if (!this.#held) return;
    this.#held = false;
    if (this.#make !== undefined) this.#arm();
  }

  #arm(): void {
    if (this.#held || this.#timer !== undefined || this.#writing !== undefined) return;
    this.#timer = setTimeout(
      () => {
        this.#timer = undefined;
        this.#writing = this.#write();
      },
      Math.max(delayMs, this.#lastWriteMs / share),
    );
    this.#timer.unref();
  }

  async #write(): Promise<void> {
    const make = this.#make;
    this.#make = undefined;
    const begunMs = performance.now();
    try {
      const draft = `${this.#path}.new`;
      const file = await open(draft, "w", 0o600);
      try {
        await file.writeFile(JSON.stringify(make?.()));
        await file.datasync();
      } finally {
        await file.close();
      }
      await rename(draft, this.#path);
    } catch {
      // A full disk: what runs goes on, and is not known after the machine's end.
    }
    this.#lastWriteMs = performance.now() - begunMs;
    this.#writing = undefined;
    if (this.#make !== undefined) this.#arm();
  }
}
