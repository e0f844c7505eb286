/**
 * Records of processes on the sandbox's disk: `cloche/processes.json`. After a cold start the agent reads its former processes there; of
 * their output only the sizes are recorded. An agent reads the file once, and only if it is of the same sandbox: a fork, whose agent has
 * the memory of its source, and a sandbox made of a checkpoint ignore the file.
 *
 *     changed ──a moment──▶ writing ──▶ written          held: nothing is written, because the disk is about to be detached
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

/** Changes within this time are written together. */
const delayMs = 200;
/** Writing takes at most this share of the time. */
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

  /** The stored processes; empty if the file is missing, damaged or of another sandbox. */
  load(sandboxId: string): StoredProcess[] {
    try {
      const file = JSON.parse(readFileSync(this.#path, "utf8")) as StoredFile;
      return file.sandbox_id === sandboxId ? file.processes : [];
    } catch {
      return [];
    }
  }

  /** Writes the answer of `make` after a short delay. A failed write is ignored. */
  saveSoon(make: () => StoredFile): void {
    this.#make = make;
    this.#arm();
  }

  /** Resolves when all changes are written. Nothing more is written until `release`. */
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
      // On a full disk processes go on, but are not known after a cold start.
    }
    this.#lastWriteMs = performance.now() - begunMs;
    this.#writing = undefined;
    if (this.#make !== undefined) this.#arm();
  }
}
