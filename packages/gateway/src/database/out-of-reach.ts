/**
 * Separates a database that is out of reach (locked, full, read-only, down, restarting) from a wrong query. The first becomes
 * `unavailable`, so that callers try again; the second is a bug, and its error is not changed.
 */
import { ClocheError } from "@cloche/protocol";
import type { DatabaseConnection, Dialect } from "kysely";

/** The dialect, with failures of the first kind turned into `unavailable`. */
export function withOutOfReach(dialect: Dialect): Dialect {
  return {
    createAdapter: () => dialect.createAdapter(),
    createIntrospector: (db) => dialect.createIntrospector(db),
    createQueryCompiler: () => dialect.createQueryCompiler(),
    createDriver() {
      const driver = dialect.createDriver();
      const acquire = driver.acquireConnection.bind(driver);
      const seen = new WeakSet<DatabaseConnection>();
      driver.acquireConnection = async (options) => {
        const connection = await translating(() => acquire(options));
        if (!seen.has(connection)) {
          seen.add(connection);
          const execute = connection.executeQuery.bind(connection) as DatabaseConnection["executeQuery"];
          connection.executeQuery = (query) => translating(() => execute(query));
        }
        return connection;
      };
      return driver;
    },
  };
}

async function translating<T>(run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    if (isFull(error))
      throw new ClocheError(
        "unavailable",
        "the disk of the service's database is full; nothing was changed: try again when there is room",
        { cause: error, retryAfterSeconds: 1 },
      );
    if ((error as { code?: string } | null)?.code === readOnlyCode) throw readOnlyDatabase(error);
    if (!isOutOfReach(error)) throw error;
    throw new ClocheError("unavailable", "the service's database does not answer; try again", {
      cause: error,
      retryAfterSeconds: 1,
    });
  }
}

/** SQLite's and PostgreSQL's codes of a full disk. */
const isFull = (error: unknown): boolean => {
  const { code, errcode } = error as { code?: string; errcode?: number };
  return errcode === undefined ? code === "53100" : errcode % 256 === 13;
};

/** A server that was demoted, a standby, or one that its provider made read-only (a full disk). */
const readOnlyCode = "25006";

export const readOnlyDatabase = (cause?: unknown): ClocheError =>
  new ClocheError("unavailable", "the service's database can only be read at present; try again", {
    cause,
    retryAfterSeconds: 1,
  });

/** SQLite: busy, locked, read-only, I/O error, cannot open. */
const sqliteCodes: ReadonlySet<number> = new Set([5, 6, 8, 10, 14]);
/** PostgreSQL: connection exceptions, no resources, shutdown and restart, cancelled by its own deadline, I/O errors. */
const postgresCodes = /^(?:08|53|57P)|^(?:57014|58030)$/;
const socketCodes: ReadonlySet<string> = new Set([
  "ECONNREFUSED",
  "ECONNRESET",
  "ENOENT",
  "ETIMEDOUT",
  "EPIPE",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
]);
const pgMessages =
  /connection terminated|timeout exceeded when trying to connect|client has encountered a connection error/i;

function isOutOfReach(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, errcode } = error as { code?: string; errcode?: number };
  if (errcode !== undefined) return sqliteCodes.has(errcode % 256);
  if (code !== undefined && (postgresCodes.test(code) || socketCodes.has(code))) return true;
  return pgMessages.test(error.message);
}
