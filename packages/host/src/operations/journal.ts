/**
 * The journal of the host's sagas: one file on a tmpfs. A crash of the service leaves it for the next start. A reboot
 * removes it; then the machine records alone decide what to do (recovery.ts). Writes are synchronous, because a write to
 * a tmpfs takes less time than handing it to another thread.
 */
import { dirname } from "node:path";
import { KeyedLog, removeEmptyFolder, type SagaJournal, type SagaRecord } from "@cloche/base";

export interface HostJournal extends SagaJournal<unknown> {
  open(): Promise<void>;
  /** Removes the journal from this computer unless a saga is pending. */
  close(): Promise<void>;
  /** The sagas that a crash cut off. */
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
