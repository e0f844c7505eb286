/**
 * Every write of a sandbox's record goes through here, so that callers that wait for a state and the edge's routes hear
 * of it as soon as it is durable. Writes of other gateways arrive through `hear`. Owns the waiters, which a crash loses
 * with their callers.
 */
import type { Database } from "../database/database.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import { gatewayLimits } from "../limits.ts";
import type {
  InsertOptions,
  NewRow,
  SandboxChange,
  SandboxRemoval,
  SandboxWrite,
} from "../database/sandboxes.ts";

/** Hears of each new version of a record; `undefined`: it is gone. */
export type RecordListener = (sandboxId: string, record: SandboxRecord | undefined) => void;

export class Records {
  readonly #sandboxes: Database["sandboxes"];
  readonly #nowMs: () => number;
  readonly #listeners = new Set<RecordListener>();
  readonly #waiters = new Map<string, Set<(record: SandboxRecord | undefined) => void>>();

  /** For each read of `hear` and `readAll` that is under way: ids that were told during that read. */
  readonly #reads = new Set<Set<string>>();

  constructor(sandboxes: Database["sandboxes"], nowMs: () => number) {
    this.#sandboxes = sandboxes;
    this.#nowMs = nowMs;
  }

  get(sandboxId: string): Promise<SandboxRecord | undefined> {
    return this.#sandboxes.get(sandboxId);
  }

  listen(listener: RecordListener): void {
    this.#listeners.add(listener);
  }

  async insert(rows: readonly NewRow[], options: InsertOptions = {}): Promise<void> {
    await this.#sandboxes.insert(rows, options);
    for (const { record } of rows) this.#notify(record.id, record);
  }

  /** As `Sandboxes.change`: undefined when the sandbox has moved on since `read`. */
  async change(
    read: SandboxRecord,
    patch: SandboxPatch,
    write: SandboxWrite = {},
  ): Promise<SandboxRecord | undefined> {
    const changed = await this.#sandboxes.change(read, patch, this.#nowMs(), write);
    if (changed !== undefined) this.#notify(changed.id, changed);
    return changed;
  }

  /** As `Sandboxes.changeAll`: undefined, and nothing is written, when one of them has moved on. */
  async changeAll(changes: readonly SandboxChange[]): Promise<SandboxRecord[] | undefined> {
    const changed = await this.#sandboxes.changeAll(changes, this.#nowMs());
    for (const record of changed ?? []) this.#notify(record.id, record);
    return changed;
  }

  async remove(read: SandboxRecord, write: SandboxRemoval): Promise<boolean> {
    const isGone = await this.#sandboxes.remove(read, write);
    if (isGone) this.#notify(read.id, undefined);
    return isGone;
  }

  /**
   * Reads and tells records that other gateways may have written. Records told during the read are read again, so that
   * an older version never follows a newer one.
   */
  async refresh(sandboxIds: readonly string[]): Promise<void> {
    for (let ids = sandboxIds; ids.length > 0; ) {
      const changedMeanwhile = new Set<string>();
      this.#reads.add(changedMeanwhile);
      const found = await this.#sandboxes.some(ids).finally(() => this.#reads.delete(changedMeanwhile));
      const records = new Map(found.map((record) => [record.id, record]));
      for (const id of ids) if (!changedMeanwhile.has(id)) this.#notify(id, records.get(id));
      ids = ids.filter((id) => changedMeanwhile.has(id));
    }
  }

  /**
   * Tells of every record, and of `known` ids that are gone. Reads page by page, so that nothing else waits for long.
   */
  async readAll(known: Iterable<string>): Promise<void> {
    const left = new Set(known);
    for (let afterId = ""; ; ) {
      const changedMeanwhile = new Set<string>();
      this.#reads.add(changedMeanwhile);
      const page = await this.#sandboxes
        .page(afterId, gatewayLimits.recordsPage)
        .finally(() => this.#reads.delete(changedMeanwhile));
      for (const record of page) {
        left.delete(record.id);
        if (!changedMeanwhile.has(record.id)) this.#notify(record.id, record);
      }
      const last = page.at(-1);
      if (last === undefined) break;
      afterId = last.id;
    }
    const gone = [...left];
    for (let start = 0; start < gone.length; start += gatewayLimits.recordsPage)
      await this.refresh(gone.slice(start, start + gatewayLimits.recordsPage));
  }

  /**
   * Resolves with the record when `isThere` is true of it; with undefined when it is gone or `signal` aborts: the
   * caller then reads the record. To miss no write, begin to wait before the write that may lead there.
   */
  waitFor(
    sandboxId: string,
    isThere: (record: SandboxRecord) => boolean,
    signal: AbortSignal,
  ): Promise<SandboxRecord | undefined> {
    return new Promise((resolve) => {
      const giveUp = (): void => finish(undefined);
      const finish = (record: SandboxRecord | undefined): void => {
        signal.removeEventListener("abort", giveUp);
        waiters.delete(waiter);
        if (waiters.size === 0 && this.#waiters.get(sandboxId) === waiters) this.#waiters.delete(sandboxId);
        resolve(record);
      };
      const waiter = (record: SandboxRecord | undefined): void => {
        if (record === undefined || isThere(record)) finish(record);
      };
      const waiters = this.#waiters.get(sandboxId) ?? new Set();
      this.#waiters.set(sandboxId, waiters);
      waiters.add(waiter);
      if (signal.aborted) giveUp();
      else signal.addEventListener("abort", giveUp, { once: true });
    });
  }

  #notify(sandboxId: string, record: SandboxRecord | undefined): void {
    for (const changedMeanwhile of this.#reads) changedMeanwhile.add(sandboxId);
    for (const listener of this.#listeners) listener(sandboxId, record);
    for (const waiter of this.#waiters.get(sandboxId) ?? []) waiter(record);
  }
}
