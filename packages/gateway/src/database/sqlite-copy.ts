import { DatabaseSync } from "node:sqlite";

/**
 * Makes a consistent copy of the database at one instant, even while a service writes to it. `target` must not exist.
 */
export function copySqlite(source: string, target: string): void {
  const database = new DatabaseSync(source, { readOnly: true, timeout: 30_000 });
  try {
    database.prepare("vacuum into ?").run(target);
  } finally {
    database.close();
  }
  nobodyUses(target);
}

/** Marks the copy as not in use: it belongs to the same installation, but no running service serves from it. */
function nobodyUses(path: string): void {
  const database = new DatabaseSync(path);
  try {
    const hasOwner = database.prepare("select 1 from sqlite_master where type = 'table' and name = 'owner'");
    if (hasOwner.get() !== undefined) database.exec("update owner set seen_at = 0");
  } finally {
    database.close();
  }
}

/** Returns the schema version. Throws when the file is damaged or not a database of ours. */
export function checkSqlite(path: string): number {
  const database = new DatabaseSync(path, { readOnly: true });
  try {
    const found = database.prepare("pragma integrity_check").all() as { integrity_check: string }[];
    const problem = found.find(({ integrity_check: text }) => text !== "ok");
    if (problem !== undefined) throw new Error(`the database is damaged: ${problem.integrity_check}`);
    const row = database.prepare("select max(version) as version from schema_version").get();
    return Number((row as { version: number }).version);
  } finally {
    database.close();
  }
}
