/**
 * Kysely over pg. 64-bit integers are read as numbers: ours are milliseconds, counters and ordinals below 2^53. Writes
 * that return no rows are prepared once on each connection. Writes that return rows are not: after a newer gateway
 * added a column to the table, they would fail ("cached plan must not change result type") as long as this process
 * lives.
 */
import { type Dialect, PostgresDialect } from "kysely";
import pg from "pg";
import { type Connections, postgresConnections } from "./postgres-pool.ts";

const connectionsMax = 10;
const connectTimeoutMs = 5_000;
const statementTimeoutMs = 30_000;
const int8Oid = 20;
/** More than the gateway has statements. A bound, because the server keeps prepared statements for each connection. */
const preparedMax = 200;

const prepared = new Map<string, string>();
/** A statement with a list is not prepared: its text differs with the list's length. */
const isPrepared = (sql: string): boolean =>
  /^(?:insert|update|delete) /.test(sql) && !/ returning | in \(/.test(sql);

function nameOf(sql: string): string | undefined {
  const known = prepared.get(sql);
  if (known !== undefined || prepared.size >= preparedMax || !isPrepared(sql)) return known;
  const name = `write-${prepared.size}`;
  prepared.set(sql, name);
  return name;
}

/** `url` is `postgres://user:password@host:port/database`; options such as `?host=/socket/folder` as pg reads them. */
export function postgresDialect(
  url: string,
  onIdleError: (error: Error) => void,
): { dialect: Dialect; connections: Connections } {
  const types = {
    getTypeParser: (oid: number, format?: "text" | "binary") =>
      oid === int8Oid && format !== "binary" ? Number : pg.types.getTypeParser(oid, format as "text"),
  } as pg.CustomTypesConfig;
  const options: pg.PoolConfig = {
    connectionString: url,
    max: connectionsMax,
    connectionTimeoutMillis: connectTimeoutMs,
    statement_timeout: statementTimeoutMs,
    types,
  };
  const connections = postgresConnections(options, onIdleError, prepareWrites);
  return { dialect: new PostgresDialect({ pool: connections }), connections };
}

/** How Kysely calls pg: with the text and the values of one statement. */
type Ask = (sql: string, values?: unknown[]) => Promise<pg.QueryResult>;

function prepareWrites(client: pg.PoolClient): void {
  const query = client.query.bind(client) as Ask & ((config: pg.QueryConfig) => Promise<pg.QueryResult>);
  const ask: Ask = (sql, values) => {
    const name = nameOf(sql);
    return name === undefined ? query(sql, values) : query({ name, text: sql, values: values ?? [] });
  };
  client.query = ask as typeof client.query;
}
