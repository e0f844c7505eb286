/**
 * Backup of the service's own data: database, signing keys, API key of the local team, certificate authority, settings. Can be made
 * while the service runs; is restored into a home without a running service. Has no disks and no memory: the backup of disks are
 * checkpoints in a bucket.
 *
 *   <folder>/cloche.db  keys/  tls/  config.yaml  installation.json  backup.json (written last: a folder without it is no backup)
 */
import { existsSync } from "node:fs";
import { chmod, cp, mkdir, open, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import {
  type Config,
  ConfigError,
  type Log,
  readJsonFile,
  rfc3339,
  syncDirectory,
  systemClock,
  writeDurably,
} from "@cloche/base";
import { checkSqlite, copySqlite, type Database, schemaVersion } from "@cloche/gateway";
import { pingControl } from "./control-socket.ts";
import { installationFile, readInstallation } from "./setup/installation.ts";

interface BackupNote {
  format: 1;
  created_at: string;
  home: string;
  /** Empty: the database is PostgreSQL's, backed up by its own tools. */
  database: "cloche.db" | "";
}

/** After a restore no sandbox's time is up for so long. */
const graceMs = 24 * 3_600_000;

const noteName = "backup.json";
const databaseName = "cloche.db";
const copied = ["keys", "tls", "config.yaml", installationFile];

/** Left by a restore for the next start (`afterRestore`). */
export const restoredMarker = (home: string): string => join(home, "restored");

export async function backUp(config: Config, folder: string): Promise<void> {
  const { home } = config;
  if (!existsSync(join(home, "keys"))) throw new ConfigError(`there is no service in ${home} to back up`);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  if ((await readdir(folder)).length > 0) throw new ConfigError(`${folder} is not empty; name a new folder`);
  await chmod(folder, 0o700);
  const hasOwnDatabase = config.databaseUrl === "";
  // The database is copied first: then the copy of the keys has every key that the database needs, and newer ones do no harm.
  if (hasOwnDatabase) {
    copySqlite(join(home, databaseName), join(folder, databaseName));
    await chmod(join(folder, databaseName), 0o600);
    checkSqlite(join(folder, databaseName));
  }
  for (const name of copied) await copyDurably(join(home, name), join(folder, name));
  await syncTree(folder);
  const note: BackupNote = {
    format: 1,
    created_at: rfc3339(systemClock.nowMs()),
    home,
    database: hasOwnDatabase ? databaseName : "",
  };
  await writeDurably(join(folder, noteName), `${JSON.stringify(note, null, 2)}\n`, 0o600);
  console.error(
    `backed up to ${folder}${hasOwnDatabase ? "" : "; the database is PostgreSQL's: use pg_dump"}`,
  );
}

export async function restoreBackup(config: Config, folder: string): Promise<void> {
  const { home } = config;
  const note = (await readJsonFile(join(folder, noteName))) as BackupNote | undefined;
  if (note?.format !== 1)
    throw new ConfigError(`${folder} is no whole backup: it has no ${noteName} of format 1`);
  if (await pingControl(home)) throw new ConfigError(`a service of ${home} is running; npm stop first`);
  const names = [...copied, ...(note.database === "" ? [] : [databaseName])];
  // A home of the same installation may keep its installation file.
  const isSameInstallation = (await readInstallation(home)) === (await readInstallation(folder));
  for (const name of names) {
    if (name === installationFile && isSameInstallation) continue;
    if (existsSync(join(home, name)) && existsSync(join(folder, name)))
      throw new ConfigError(`${join(home, name)} exists; move it away first`);
  }
  if (note.database !== "") {
    const version = checkSqlite(join(folder, databaseName));
    if (version > schemaVersion)
      throw new ConfigError(
        `the backup has schema version ${version}; this release knows up to ${schemaVersion}`,
      );
  }
  await mkdir(home, { recursive: true });
  await writeDurably(restoredMarker(home), `${JSON.stringify(note)}\n`, 0o600);
  for (const name of names) {
    await rm(join(home, `.restoring-${name}`), { recursive: true, force: true });
    await copyDurably(join(folder, name), join(home, `.restoring-${name}`));
  }
  await syncTree(home, (name) => name.startsWith(".restoring-"));
  for (const name of names) {
    if (existsSync(join(home, `.restoring-${name}`)))
      await rename(join(home, `.restoring-${name}`), join(home, name));
  }
  await syncDirectory(home);
  const moved =
    note.home === home ? "" : `; it was made in ${note.home}: tokens given out there are not valid here`;
  console.error(`restored what ${folder} knew at ${note.created_at}${moved}`);
}

/**
 * The first start after a restore: nothing is deleted or suspended because of a time that its owner may have extended after the backup.
 * Machines that the database does not know are kept in any case (`orphans.ts`).
 */
export async function afterRestore(home: string, database: Database, log: Log): Promise<void> {
  const marker = restoredMarker(home);
  if (!existsSync(marker)) return;
  const untilMs = systemClock.nowMs() + graceMs;
  await database.sandboxes.postponeExpiries(untilMs);
  await rm(marker);
  log.warn({ until: rfc3339(untilMs) }, "a backup was restored: no sandbox's time is up before then");
}

/** Does nothing if `from` does not exist. */
async function copyDurably(from: string, to: string): Promise<void> {
  if (existsSync(from)) await cp(from, to, { recursive: true, preserveTimestamps: true, mode: 0 });
}

async function syncTree(folder: string, takes: (name: string) => boolean = () => true): Promise<void> {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (!takes(entry.name)) continue;
    if (entry.isDirectory()) await syncTree(path);
    else if (entry.isFile()) {
      const handle = await open(path);
      try {
        await handle.sync();
      } finally {
        await handle.close();
      }
    }
  }
  await syncDirectory(folder);
}
