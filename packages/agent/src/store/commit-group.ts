import type { DatabaseSync } from "node:sqlite";

interface Waiting {
  write: () => unknown;
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
}

/**
 * Runs writes in transactions. Writes that arrive during a sync share the next transaction, so that many clients share the cost of one
 * sync; a single write does not wait. A write that throws is undone without the others. The promise of a write resolves when it is durable.
 */
export class CommitGroup {
  readonly #database: () => DatabaseSync;
  #waiting: Waiting[] = [];

  constructor(database: () => DatabaseSync) {
    this.#database = database;
  }

  run<Result>(write: () => Result): Promise<Result> {
    return new Promise((resolve, reject) => {
      if (this.#waiting.length === 0) setImmediate(() => this.flush());
      this.#waiting.push({ write, resolve: resolve as (value: unknown) => void, reject });
    });
  }

  /** Commits waiting writes, before the store is closed or synced. */
  flush(): void {
    const group = this.#waiting;
    this.#waiting = [];
    if (group.length === 0) return;
    try {
      this.#commit(group);
    } catch (error) {
      if (group.length === 1) group[0]?.reject(error);
      // A write that did not fit on the disk must not fail the others.
      else for (const one of group) this.#commitAlone(one);
    }
  }

  #commitAlone(one: Waiting): void {
    try {
      this.#commit([one]);
    } catch (error) {
      one.reject(error);
    }
  }

  #commit(group: readonly Waiting[]): void {
    const database = this.#database();
    const outcomes: (() => void)[] = [];
    database.exec("BEGIN IMMEDIATE");
    try {
      for (const { write, resolve, reject } of group) {
        database.exec("SAVEPOINT one");
        try {
          const value = write();
          outcomes.push(() => resolve(value));
        } catch (error) {
          if (group.length === 1 || !database.isTransaction) throw error;
          database.exec("ROLLBACK TO one");
          outcomes.push(() => reject(error));
        }
        database.exec("RELEASE one");
      }
      database.exec("COMMIT");
    } catch (error) {
      if (database.isTransaction) database.exec("ROLLBACK");
      throw error;
    }
    for (const settle of outcomes) settle();
  }
}
