/**
 * The sandbox's key-value store (spec/contract.md, store): one SQLite file on the sandbox's disk, outside the users' tree. Checkpoints,
 * forks and restores include it with the disk.
 *
 *     ready ──first use──▶ open ──close (disk detached, shutdown)──▶ closed ──ready──▶ ready
 *
 * A write is answered when it is durable. Expired entries are invisible at once and swept later.
 * Called by store/routes.ts and, for flush and close, by control/disk.ts.
 */
import type { DatabaseSync, StatementSync } from "node:sqlite";
import { ClocheError } from "@cloche/protocol";
import { CommitGroup } from "./commit-group.ts";
import { openDatabase, storeError } from "./database.ts";
import { afterPrefix } from "./keys.ts";

export interface StoreEntry {
  /** JSON text. */
  value: Buffer;
  expiresAtMs: number | null;
}
export type StoreWrite =
  | { op: "set"; key: Buffer; value: Buffer; expiresAtMs: number | null }
  | { op: "delete"; key: Buffer };

export interface StoreClock {
  now(): number;
  /** Runs `then` after `delayMs`, without keeping the process alive. The answer cancels it. */
  schedule(then: () => void, delayMs: number): () => void;
}

const sweepSlackMs = 5_000;
const sweepRows = 500;

export class Store {
  readonly #path: string;
  readonly #clock: StoreClock;
  #database: DatabaseSync | undefined;
  #statements: Statements | undefined;
  #ready = true;
  #sweep: { atMs: number; cancel: () => void } | undefined;
  readonly #group = new CommitGroup(() => this.#open().database);

  constructor(path: string, clock: StoreClock) {
    this.#path = path;
    this.#clock = clock;
  }

  get(key: Buffer): StoreEntry | undefined {
    return this.#attempt(() => {
      const row = this.#open().statements.get.get(key, this.#clock.now());
      if (row === undefined) return undefined;
      return {
        value: Buffer.from(row["value"] as Uint8Array),
        expiresAtMs: row["expires_at_ms"] as number | null,
      };
    });
  }

  /** Keys that start with `prefix`, after `cursor` if given, in byte order; `more`: whether further keys follow. */
  list(prefix: Buffer, limit: number, cursor: Buffer | undefined): { keys: Buffer[]; more: boolean } {
    return this.#attempt(() => {
      const { statements } = this.#open();
      const from = cursor !== undefined && cursor.compare(prefix) >= 0 ? cursor : undefined;
      const rows = statements.list.all(
        from ?? prefix,
        from === undefined ? 1 : 0,
        afterPrefix(prefix) ?? null,
        this.#clock.now(),
        limit + 1,
      );
      const keys = rows.slice(0, limit).map((row) => Buffer.from(row["key"] as Uint8Array));
      return { keys, more: rows.length > limit };
    });
  }

  /** Applies all writes or none; durable when it resolves. Answers for each whether its key existed before. */
  async apply(writes: readonly StoreWrite[]): Promise<boolean[]> {
    try {
      const existed = await this.#group.run(() => {
        const { statements } = this.#open();
        const nowMs = this.#clock.now();
        return writes.map((write) => applyOne(statements, write, nowMs));
      });
      let firstMs = Number.POSITIVE_INFINITY;
      for (const write of writes) {
        if (write.op === "set" && write.expiresAtMs !== null) firstMs = Math.min(firstMs, write.expiresAtMs);
      }
      this.#sweepAt(firstMs);
      return existed;
    } catch (error) {
      throw this.#failed(error);
    }
  }

  /**
   * Moves the WAL into the main file, for a checkpoint of the disk. On a full disk the data stays in the WAL, which is as durable and part of
   * the disk: only the next open takes longer.
   */
  flush(): void {
    this.#group.flush();
    if (this.#database === undefined) return;
    try {
      this.#database.exec("PRAGMA wal_checkpoint(TRUNCATE)");
    } catch (error) {
      const failure = this.#failed(error);
      if (failure.resource !== "disk") throw failure;
    }
  }

  /** The disk is attached (again): the next use opens the file. */
  ready(): void {
    this.#ready = true;
  }

  /** Closes the file until `ready`. Never throws, because a damaged store must not hold the disk. */
  close(): void {
    this.#sweep?.cancel();
    this.#sweep = undefined;
    try {
      this.#group.flush();
      this.#database?.close();
    } catch {
      // SQLite closes the file anyway; answered writes are in the WAL.
    }
    this.#ready = false;
    this.#database = undefined;
    this.#statements = undefined;
  }

  #open(): { database: DatabaseSync; statements: Statements } {
    if (!this.#ready) {
      // The request was accepted before the disk was detached.
      throw new ClocheError("unavailable", "the sandbox's disk is not attached just now", {
        retryAfterSeconds: 1,
      });
    }
    if (this.#database === undefined || this.#statements === undefined) {
      const database = openDatabase(this.#path);
      this.#database = database;
      this.#statements = prepare(database);
      const next = this.#statements.nextExpiry.get()?.["at_ms"];
      if (typeof next === "number") this.#sweepAt(next);
    }
    return { database: this.#database, statements: this.#statements };
  }

  #attempt<Result>(work: () => Result): Result {
    try {
      return work();
    } catch (error) {
      throw this.#failed(error);
    }
  }

  /** Answers the public error. After any error except a full disk the file is opened again. */
  #failed(thrown: unknown): ClocheError {
    const error = storeError(thrown);
    if (error.code === "internal") {
      try {
        this.#database?.close();
      } catch {
        // The connection is dropped anyway.
      }
      this.#database = undefined;
      this.#statements = undefined;
    }
    return error;
  }

  /** Plans a sweep a little after `expiresAtMs`, unless an earlier one is planned. */
  #sweepAt(expiresAtMs: number): void {
    if (!Number.isFinite(expiresAtMs)) return;
    const atMs = Math.max(expiresAtMs, this.#clock.now()) + sweepSlackMs;
    if (this.#sweep !== undefined && this.#sweep.atMs <= atMs) return;
    this.#sweep?.cancel();
    const delayMs = Math.min(atMs - this.#clock.now(), 2 ** 31 - 1);
    this.#sweep = { atMs, cancel: this.#clock.schedule(() => void this.#sweepNow(), delayMs) };
  }

  async #sweepNow(): Promise<void> {
    this.#sweep = undefined;
    try {
      const next = await this.#group.run(() => {
        const { statements } = this.#open();
        statements.sweep.run(this.#clock.now(), sweepRows);
        return statements.nextExpiry.get()?.["at_ms"];
      });
      if (typeof next === "number") this.#sweepAt(next);
    } catch {
      // On a full or damaged disk expired entries stay invisible, and the next write plans a sweep again.
    }
  }
}

type Statements = ReturnType<typeof prepare>;

function prepare(
  database: DatabaseSync,
): Record<"get" | "list" | "set" | "delete" | "sweep" | "nextExpiry", StatementSync> {
  return {
    get: database.prepare(
      "SELECT value, expires_at_ms FROM entries WHERE key = ? AND (expires_at_ms IS NULL OR expires_at_ms > ?)",
    ),
    list: database.prepare(
      `SELECT key FROM entries WHERE key >= ?1 AND (?2 OR key <> ?1) AND (?3 IS NULL OR key < ?3)
       AND (expires_at_ms IS NULL OR expires_at_ms > ?4) ORDER BY key LIMIT ?5`,
    ),
    set: database.prepare(
      `INSERT INTO entries (key, value, expires_at_ms) VALUES (?, ?, ?)
       ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at_ms = excluded.expires_at_ms`,
    ),
    delete: database.prepare("DELETE FROM entries WHERE key = ? RETURNING expires_at_ms"),
    sweep: database.prepare(
      "DELETE FROM entries WHERE id IN (SELECT id FROM entries WHERE expires_at_ms <= ? LIMIT ?)",
    ),
    nextExpiry: database.prepare(
      "SELECT min(expires_at_ms) AS at_ms FROM entries WHERE expires_at_ms IS NOT NULL",
    ),
  };
}

function applyOne(statements: Statements, write: StoreWrite, nowMs: number): boolean {
  if (write.op === "set") {
    statements.set.run(write.key, write.value, write.expiresAtMs);
    return true;
  }
  const row = statements.delete.get(write.key);
  if (row === undefined) return false;
  const expiresAtMs = row["expires_at_ms"];
  return expiresAtMs === null || Number(expiresAtMs) > nowMs;
}

/** The wall clock and Node's timers. */
export const systemStoreClock: StoreClock = {
  now: Date.now,
  schedule: (then, delayMs) => {
    const timer = setTimeout(then, delayMs);
    timer.unref();
    return () => clearTimeout(timer);
  },
};

/** The 404 for a key that is missing or has expired. */
export function missingKey(key: Buffer): ClocheError {
  return new ClocheError("not_found", `there is no key ${JSON.stringify(key.toString("utf8"))} in the store`);
}
