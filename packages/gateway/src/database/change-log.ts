/**
 * The log of changed records, for gateways that share a database. Each write of records adds their ids in its own
 * transaction. A sequence number is given before the transaction commits, so a reader may see a later number first
 * (lifecycle/change-follower.ts). With a single gateway there is no log.
 */
import type { Kysely } from "kysely";
import { fromDatabaseNow } from "./database-clock.ts";
import type { Schema } from "./schema.ts";

export interface Change {
  sequence: number;
  sandboxId: string;
}

/** Notifies the followers of all gateways that there are changes. */
export interface ChangeSignal {
  /** Notifies soon, once for all changes until then. */
  send(): void;
  /** Calls `heard` for each notification, sometimes without a change, until `close`. */
  listen(listener: () => void): { close(): Promise<void> };
}

export class ChangeLog {
  readonly #db: Kysely<Schema>;
  readonly #signal: ChangeSignal;

  constructor(db: Kysely<Schema>, signal: ChangeSignal) {
    this.#db = db;
    this.#signal = signal;
  }

  /** Call it within the transaction that changes the records, and `announce` after the commit. */
  async note(tx: Kysely<Schema>, sandboxIds: readonly string[]): Promise<void> {
    const rows = sandboxIds.map((id) => ({ sandbox_id: id, at: fromDatabaseNow(tx) }));
    await tx.insertInto("changes").values(rows).execute();
  }

  announce(): void {
    this.#signal.send();
  }

  listen(listener: () => void): { close(): Promise<void> } {
    return this.#signal.listen(listener);
  }

  /** The newest `limit` sequence numbers, ascending. */
  async newest(limit: number): Promise<number[]> {
    const rows = await this.#db
      .selectFrom("changes")
      .select("sequence")
      .orderBy("sequence", "desc")
      .limit(limit)
      .execute();
    return rows.map(({ sequence }) => sequence).toReversed();
  }

  /** Changes after `last`, and those of `missing` that are there by now; ascending, at most `limit`. */
  async read(last: number, missing: readonly number[], limit: number): Promise<Change[]> {
    const rows = await this.#db
      .selectFrom("changes")
      .select(["sequence", "sandbox_id"])
      .where((e) =>
        missing.length === 0
          ? e("sequence", ">", last)
          : e.or([e("sequence", ">", last), e("sequence", "in", missing)]),
      )
      .orderBy("sequence")
      .limit(limit)
      .execute();
    return rows.map(({ sequence, sandbox_id }) => ({ sequence, sandboxId: sandbox_id }));
  }

  /** Drops older changes, by the database's clock. */
  async prune(keepMs: number): Promise<void> {
    await this.#db.deleteFrom("changes").where("at", "<", fromDatabaseNow(this.#db, -keepMs)).execute();
  }
}

/** For gateways that are all in this process: in tests, on SQLite. */
export function signalInProcess(): ChangeSignal {
  const listeners = new Set<() => void>();
  return {
    send() {
      for (const listener of listeners) listener();
    },
    listen(listener) {
      listeners.add(listener);
      return {
        async close() {
          listeners.delete(listener);
        },
      };
    },
  };
}
