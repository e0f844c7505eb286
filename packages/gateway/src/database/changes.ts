/**
 * The log of changes of records, for the gateways that share a database: each write of a record notes the ids that it changed,
 * in its own transaction. Sequences are given before transactions commit, so a reader may see a later one first
 * (lifecycle/change-follower.ts). A database that one gateway has for itself keeps no log.
 */
import type { Kysely } from "kysely";
import { fromDatabaseNow } from "./database-clock.ts";
import type { Schema } from "./schema.ts";

export interface Change {
  sequence: number;
  sandboxId: string;
}

/** Tells the readers of all gateways that there is something to read. */
export interface ChangeSignal {
  /** Soon, once for all that was noted until then. */
  send(): void;
  /** `heard` may be called without a reason. Ends with the answer's `close`. */
  listen(heard: () => void): { close(): Promise<void> };
}

export class Changes {
  readonly #db: Kysely<Schema>;
  readonly #signal: ChangeSignal;

  constructor(db: Kysely<Schema>, signal: ChangeSignal) {
    this.#db = db;
    this.#signal = signal;
  }

  /** Within the transaction that changes them; `announce` follows its commit. */
  async note(tx: Kysely<Schema>, sandboxIds: readonly string[]): Promise<void> {
    const rows = sandboxIds.map((id) => ({ sandbox_id: id, at: fromDatabaseNow(tx) }));
    await tx.insertInto("changes").values(rows).execute();
  }

  announce(): void {
    this.#signal.send();
  }

  listen(heard: () => void): { close(): Promise<void> } {
    return this.#signal.listen(heard);
  }

  /** The newest `limit` sequences, ascending. */
  async newest(limit: number): Promise<number[]> {
    const rows = await this.#db
      .selectFrom("changes")
      .select("sequence")
      .orderBy("sequence", "desc")
      .limit(limit)
      .execute();
    return rows.map(({ sequence }) => sequence).toReversed();
  }

  /** What came after `last`, at most `limit`, and what of `missing` there is by now; ascending. */
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

  /** Drops what is older, by the database's clock. */
  async prune(keepMs: number): Promise<void> {
    await this.#db.deleteFrom("changes").where("at", "<", fromDatabaseNow(this.#db, -keepMs)).execute();
  }
}

/** All gateways are in this process: in tests, on SQLite. */
export function signalInProcess(): ChangeSignal {
  const listeners = new Set<() => void>();
  return {
    send() {
      for (const heard of listeners) heard();
    },
    listen(heard) {
      listeners.add(heard);
      return {
        async close() {
          listeners.delete(heard);
        },
      };
    },
  };
}
