/**
 * Schema versions, forward only. A version that has shipped is never edited: a change is a new one at the end. Each
 * runs in a transaction with the row that records it, so a crash leaves the old or the new version whole.
 */
import { ClocheError } from "@cloche/protocol";
import { type Kysely, sql } from "kysely";
import { isPostgres } from "./database-clock.ts";
import { makeStorageTables } from "./storage-tables.ts";
import {
  makeClusterTables,
  makeSandboxTable,
  makeTablesOfHistory,
  makeTablesOfSandboxes,
  makeTeamTables,
} from "./tables.ts";

type Migration = (schema: Kysely<unknown>["schema"], db: Kysely<unknown>) => Promise<void>;

const migrations: readonly Migration[] = [
  async function version1(schema, db) {
    await makeTeamTables(schema);
    await makeSandboxTable(schema, db);
    await makeTablesOfSandboxes(schema);
    await makeTablesOfHistory(schema);
    await makeClusterTables(schema, db);
    await makeStorageTables(schema, db);
  },
];

export const schemaVersion = migrations.length;

/** Id of the advisory lock: any number, but the same in every release. */
const migrationLock = 7_016_351;

interface VersionTable {
  schema_version: { version: number; applied_at: number };
}

/**
 * Brings the schema to `schemaVersion`. Returns the version found (0: the database is new). Throws when the database is
 * of a newer release. Several starts at once are safe: the first holds a lock, and the others find its work done.
 */
export async function migrate(kysely: Kysely<unknown>, nowMs: number): Promise<number> {
  const db = kysely as Kysely<VersionTable>;
  return await db.transaction().execute(async (tx) => {
    // SQLite's transaction takes the lock at its beginning; PostgreSQL's "if not exists" alone is not safe against
    // another start.
    if (isPostgres(kysely)) await sql`select pg_advisory_xact_lock(${migrationLock})`.execute(tx);
    await tx.schema
      .createTable("schema_version")
      .ifNotExists()
      .addColumn("version", "integer", (c) => c.primaryKey())
      .addColumn("applied_at", "bigint", (c) => c.notNull())
      .execute();
    const row = await tx
      .selectFrom("schema_version")
      .select((e) => e.fn.max("version").as("version"))
      .executeTakeFirst();
    const found = row?.version ?? 0;
    if (found > schemaVersion) {
      throw new ClocheError(
        "failed_precondition",
        `the database has schema version ${found}; this release knows up to ${schemaVersion}. It is of a newer release, or of a version ` +
          "before 0.1.0: start that one, or begin with another database (CLOCHE_HOME, CLOCHE_DATABASE_URL)",
      );
    }
    for (const [index, migration] of migrations.entries()) {
      const version = index + 1;
      if (version <= found) continue;
      await migration(tx.schema, tx as unknown as Kysely<unknown>);
      await tx.insertInto("schema_version").values({ version, applied_at: nowMs }).execute();
    }
    return found;
  });
}
