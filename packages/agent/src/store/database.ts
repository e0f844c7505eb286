import { lstatSync, mkdirSync } from "node:fs";
import { dirname } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { ClocheError } from "@cloche/protocol";

const applicationId = 0x636c6f63; // "cloc"
const schema = [
  "CREATE TABLE entries (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, value BLOB NOT NULL, expires_at_ms INTEGER)",
  "CREATE INDEX entries_expiry ON entries (expires_at_ms) WHERE expires_at_ms IS NOT NULL",
];

/**
 * Opens the store's SQLite file and creates it if it is missing. WAL without shared memory (EXCLUSIVE), because mapped memory has corrupted
 * databases on gVisor's file systems; synchronous FULL, so that an answered write survives kill -9. Throws `internal` with a clear message
 * if the file is damaged or not a store.
 */
export function openDatabase(path: string): DatabaseSync {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  for (const file of [path, `${path}-wal`]) {
    const stat = lstatSync(file, { throwIfNoEntry: false });
    if (stat !== undefined && !stat.isFile()) throw damaged(new Error(`${file} is no regular file`));
  }
  // Loaded on first use, so that a sandbox that does not use its store does not pay for it.
  const { DatabaseSync: Database } = process.getBuiltinModule("node:sqlite");
  let database: DatabaseSync | undefined;
  try {
    database = new Database(path, { timeout: 2_000 });
    database.exec("PRAGMA locking_mode = EXCLUSIVE");
    database.exec("PRAGMA trusted_schema = OFF");
    database.exec("PRAGMA cell_size_check = ON");
    database.exec("PRAGMA journal_mode = WAL");
    database.exec("PRAGMA synchronous = FULL");
    database.exec("PRAGMA temp_store = MEMORY");
    database.exec("PRAGMA cache_size = -2048");
    ensureSchema(database);
    return database;
  } catch (error) {
    try {
      database?.close();
    } catch {
      // The error of the open matters, not that of the close.
    }
    throw storeError(error);
  }
}

function ensureSchema(database: DatabaseSync): void {
  const found = database.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid").all();
  if (found.length === 0) {
    database.exec("BEGIN IMMEDIATE");
    for (const statement of schema) database.exec(statement);
    database.exec(`PRAGMA application_id = ${applicationId}`);
    database.exec("COMMIT");
    return;
  }
  // Any other object in the schema (a view, a trigger) would run with our statements.
  const same = found.length === schema.length && found.every((row, index) => row["sql"] === schema[index]);
  if (!same) throw damaged(new Error("the schema is not the store's"));
}

function damaged(cause: unknown): ClocheError {
  return new ClocheError(
    "internal",
    "the store's file on this sandbox's disk is damaged; restore a checkpoint to get the store back",
    { cause },
  );
}

const sqliteIoError = 10;
const sqliteCorrupt = 11;
const sqliteFull = 13;
const sqliteNotADatabase = 26;

/** Turns an error of SQLite into the public error: a full disk (507), a damaged file, or internal. */
export function storeError(thrown: unknown): ClocheError {
  if (thrown instanceof ClocheError) return thrown;
  const { errcode } = thrown as { errcode?: number };
  const code = typeof errcode === "number" ? errcode & 0xff : 0;
  if (code === sqliteFull) {
    return new ClocheError("resource_exhausted", "the sandbox's disk is full; nothing was stored", {
      resource: "disk",
      cause: thrown,
    });
  }
  if (code === sqliteCorrupt || code === sqliteNotADatabase) return damaged(thrown);
  if (code === sqliteIoError) {
    return new ClocheError("internal", "the sandbox's disk did not take or give the store's data", {
      cause: thrown,
    });
  }
  return new ClocheError("internal", "the store failed", { cause: thrown });
}
