/** Kysely over pg. 64-bit integers are read as numbers: ours are milliseconds, counters and ordinals below 2^53. */
import { type Dialect, PostgresDialect } from "kysely";
import pg from "pg";

const connectionsMax = 10;
const connectTimeoutMs = 5_000;
const statementTimeoutMs = 30_000;
const int8Oid = 20;

/** `url` is `postgres://user:password@host:port/database`; options such as `?host=/socket/folder` as pg reads them. */
export function postgresDialect(url: string, onIdleError: (error: Error) => void): Dialect {
  const types = {
    getTypeParser: (oid: number, format?: "text" | "binary") =>
      oid === int8Oid && format !== "binary" ? Number : pg.types.getTypeParser(oid, format as "text"),
  } as pg.CustomTypesConfig;
  const pool = new pg.Pool({
    connectionString: url,
    max: connectionsMax,
    connectionTimeoutMillis: connectTimeoutMs,
    statement_timeout: statementTimeoutMs,
    types,
  });
  // Without a listener a connection that breaks while idle would end the process.
  pool.on("error", onIdleError);
  // So would one that breaks between two statements of a transaction: the next statement fails, and says so to its caller.
  pool.on("connect", (client) => void client.on("error", () => undefined));
  return new PostgresDialect({ pool });
}
