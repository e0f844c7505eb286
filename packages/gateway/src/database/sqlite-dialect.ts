/**
 * Kysely over node:sqlite. One connection; Kysely's own mutex keeps transactions apart. Statements are cached by their
 * text, since the gateway has a small fixed set of them. WAL with synchronous FULL: committed writes survive a power
 * cut.
 */
import type { Clock } from "@cloche/base";
import { DatabaseSync, type SQLInputValue, type StatementSync } from "node:sqlite";
import {
  CompiledQuery,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  type QueryResult,
  SqliteAdapter,
  SqliteIntrospector,
  SqliteQueryCompiler,
} from "kysely";

/** Another connection may hold the lock this long before a query fails. The wait does not block the event loop. */
const busyTimeoutMs = 5_000;
const busyPollMs = 5;
const sqliteBusy = 5;
const cachedStatements = 500;

/** `path` is a file, or `:memory:`. `clock`: the database's clock, `now_ms()` in SQL. */
export function sqliteDialect(path: string, clock: Pick<Clock, "nowMs">): Dialect {
  return {
    createAdapter: () => new SqliteAdapter(),
    createDriver: () => new NodeSqliteDriver(path, clock),
    createIntrospector: (db) => new SqliteIntrospector(db),
    createQueryCompiler: () => new SqliteQueryCompiler(),
  };
}

class NodeSqliteDriver implements Driver {
  readonly #path: string;
  readonly #clock: Pick<Clock, "nowMs">;
  #connection: NodeSqliteConnection | undefined;

  constructor(path: string, clock: Pick<Clock, "nowMs">) {
    this.#path = path;
    this.#clock = clock;
  }

  async init(): Promise<void> {
    const database = new DatabaseSync(this.#path, { timeout: 0 });
    await whileBusy(() => database.exec("pragma journal_mode = wal"));
    database.exec("pragma synchronous = full; pragma foreign_keys = on; pragma temp_store = memory");
    // SQLite takes a bigint as an integer.
    database.function("now_ms", () => BigInt(Math.floor(this.#clock.nowMs())));
    this.#connection = new NodeSqliteConnection(database);
  }

  async acquireConnection(): Promise<DatabaseConnection> {
    if (this.#connection === undefined) throw new Error("the database is closed");
    return this.#connection;
  }

  async beginTransaction(connection: DatabaseConnection): Promise<void> {
    // Immediate: otherwise a transaction that reads first would fail at its first write if another writer came between.
    await connection.executeQuery(CompiledQuery.raw("begin immediate"));
  }

  async commitTransaction(connection: DatabaseConnection): Promise<void> {
    await connection.executeQuery(CompiledQuery.raw("commit"));
  }

  async rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    // A full disk or an I/O error has ended the transaction already; a second rollback would hide that error.
    if (this.#connection?.isInTransaction === false) return;
    await connection.executeQuery(CompiledQuery.raw("rollback"));
  }

  async releaseConnection(): Promise<void> {}

  async destroy(): Promise<void> {
    this.#connection?.close();
    this.#connection = undefined;
  }
}

class NodeSqliteConnection implements DatabaseConnection {
  readonly #database: DatabaseSync;
  readonly #statements = new Map<string, { statement: StatementSync; reads: boolean }>();

  constructor(database: DatabaseSync) {
    this.#database = database;
  }

  get isInTransaction(): boolean {
    return this.#database.isTransaction;
  }

  async executeQuery<Row>(query: CompiledQuery): Promise<QueryResult<Row>> {
    // A statement that finds the database busy has done nothing. Within a transaction none is busy: `begin` took the
    // lock.
    return await whileBusy(() => {
      const { statement, reads } = this.#prepare(query.sql);
      const parameters = query.parameters as SQLInputValue[];
      if (reads) return { rows: statement.all(...parameters) as Row[] };
      const { changes, lastInsertRowid } = statement.run(...parameters);
      return { rows: [], numAffectedRows: BigInt(changes), insertId: BigInt(lastInsertRowid) };
    });
  }

  // oxlint-disable-next-line require-yield
  async *streamQuery<Row>(): AsyncIterableIterator<QueryResult<Row>> {
    throw new Error("the gateway streams no queries");
  }

  close(): void {
    this.#statements.clear();
    this.#database.close();
  }

  #prepare(sql: string): { statement: StatementSync; reads: boolean } {
    const known = this.#statements.get(sql);
    if (known !== undefined) return known;
    const statement = this.#database.prepare(sql);
    const entry = { statement, reads: statement.columns().length > 0 };
    if (this.#statements.size >= cachedStatements) this.#statements.clear();
    this.#statements.set(sql, entry);
    return entry;
  }
}

async function whileBusy<T>(run: () => T): Promise<T> {
  for (let waitedMs = 0; ; waitedMs += busyPollMs) {
    try {
      return run();
    } catch (error) {
      const isBusy = ((error as { errcode?: number }).errcode ?? 0) % 256 === sqliteBusy;
      if (!isBusy || waitedMs >= busyTimeoutMs) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, busyPollMs));
  }
}
