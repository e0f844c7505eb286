// Where the host's sagas are written down: in one file, on a tmpfs. A crash of the service leaves them for the next start; a
// reboot takes them, and then the machine records alone say what is to be done (recovery.ts). Written in place, since a write
// to a tmpfs takes less than handing it to another thread.
import { dirname } from "node:path";
import { KeyedLog, removeEmptyFolder, type SagaJournal, type SagaRecord } from "@cloche/base";

export interface HostJournal extends SagaJournal<unknown> {
  open(): Promise<void>;
  /** Nothing of it is left on the machine, unless something is pending. */
  close(): Promise<void>;
  /** What a crash cut off. */
  pending(): Promise<SagaRecord<unknown>[]>;
}

export class FileJournal implements HostJournal {
  readonly #path: string;
  readonly #log: KeyedLog;

  constructor(path: string) {
    this.#path = path;
    this.#log = new KeyedLog(path);
  }

  async open(): Promise<void> {
    this.#log.open();
  }

  async close(): Promise<void> {
    this.#log.close();
    await removeEmptyFolder(dirname(this.#path));
  }

  async save(record: SagaRecord<unknown>): Promise<void> {
    this.#log.set(record.id, JSON.stringify(record));
  }

  async remove(id: string): Promise<void> {
    this.#log.delete(id);
  }

  async pending(): Promise<SagaRecord<unknown>[]> {
    return this.#log.entries().map(([, text]) => JSON.parse(text) as SagaRecord<unknown>);
  }
}
