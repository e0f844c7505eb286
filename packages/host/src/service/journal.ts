// Where the host's sagas are written down: one file each, on a tmpfs. A crash of the service leaves them for the next
// start; a reboot takes them, and then the machine records alone say what is to be done (recovery.ts). Written in place, since
// a write to a tmpfs takes less than handing it to another thread.
import { renameSync, rmSync, writeFileSync } from "node:fs";
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile, removeEmptyFolder, type SagaJournal, type SagaRecord } from "@cloche/base";

export interface HostJournal extends SagaJournal<unknown> {
  open(): Promise<void>;
  /** Nothing of it is left on the machine, unless something is pending. */
  close(): Promise<void>;
  /** What a crash cut off. */
  pending(): Promise<SagaRecord<unknown>[]>;
}

export class FileJournal implements HostJournal {
  readonly #dir: string;

  constructor(dir: string) {
    this.#dir = dir;
  }

  async open(): Promise<void> {
    await mkdir(this.#dir, { recursive: true, mode: 0o700 });
  }

  close(): Promise<void> {
    return removeEmptyFolder(this.#dir);
  }

  async save(record: SagaRecord<unknown>): Promise<void> {
    const path = this.#path(record.id);
    writeFileSync(`${path}.new`, JSON.stringify(record), { mode: 0o600 });
    renameSync(`${path}.new`, path);
  }

  async remove(id: string): Promise<void> {
    rmSync(this.#path(id), { force: true });
  }

  async pending(): Promise<SagaRecord<unknown>[]> {
    const records: SagaRecord<unknown>[] = [];
    for (const name of await readdir(this.#dir)) {
      if (!name.endsWith(".json")) continue;
      records.push((await readJsonFile(join(this.#dir, name))) as SagaRecord<unknown>);
    }
    return records;
  }

  #path(id: string): string {
    return join(this.#dir, `${id}.json`);
  }
}
