/**
 * All state that the gateway keeps. Only this folder uses Kysely, node:sqlite and pg; the rest of the gateway sees the
 * tables through these classes. The same queries run on SQLite and PostgreSQL, and one contract suite tests both
 * (tests/contracts/database.test.ts).
 */
import { open } from "node:fs/promises";
import type { Clock, OwnedPlace } from "@cloche/base";
import { type Dialect, Kysely, sql } from "kysely";
import { ApiKeys } from "./api-keys.ts";
import { Audit } from "./audit.ts";
import { ChangeLog, type ChangeSignal, signalInProcess } from "./change-log.ts";
import { FileLinks } from "./file-links.ts";
import { Gateways } from "./gateways.ts";
import { Hosts } from "./hosts.ts";
import { IdempotencyKeys } from "./idempotency-keys.ts";
import { migrate } from "./migrations.ts";
import { readOnlyDatabase, withOutOfReach } from "./out-of-reach.ts";
import { Operations } from "./operations.ts";
import { OwnerOfDatabase } from "./owner-row.ts";
import { PortLinks } from "./port-links.ts";
import { postgresDialect } from "./postgres-dialect.ts";
import { postgresSignal } from "./postgres-signal.ts";
import { Readiness } from "./readiness.ts";
import { Sandboxes } from "./sandboxes.ts";
import type { Schema } from "./schema.ts";
import { Secrets } from "./secrets.ts";
import { sqliteDialect } from "./sqlite-dialect.ts";
import { StorageSweep } from "./storage-sweep.ts";
import { StoredNames } from "./stored-names.ts";
import { Teams } from "./teams.ts";
import { Usage } from "./usage.ts";

export interface Database {
  readonly teams: Teams;
  readonly apiKeys: ApiKeys;
  readonly sandboxes: Sandboxes;
  readonly operations: Operations;
  readonly portLinks: PortLinks;
  readonly fileLinks: FileLinks;
  readonly idempotencyKeys: IdempotencyKeys;
  readonly audit: Audit;
  readonly usage: Usage;
  readonly gateways: Gateways;
  readonly hosts: Hosts;
  readonly secrets: Secrets;
  readonly storedNames: StoredNames;
  readonly storageSweep: StorageSweep;
  /** Undefined: the database has a single gateway. */
  readonly changeLog: ChangeLog | undefined;
  /** Opening the database does not claim it; a service that starts on it does. */
  readonly ownership: OwnedPlace;
  /** Throws `unavailable` when the database does not answer soon, or cannot be written: locked, a standby, a read-only file system. */
  ping(): Promise<void>;
  close(): Promise<void>;
}

/** `isShared`: several gateways use the database at once; each needs an `owner` (GatewayParts). Default: false. */
export interface OpenOptions {
  isShared?: boolean;
}

/** `path`: a file (created if missing, readable by its owner only) or `:memory:`. Shared only within this process. */
export async function openSqlite(
  path: string,
  clock: Pick<Clock, "nowMs">,
  { isShared = false }: OpenOptions = {},
): Promise<Database> {
  // The file holds environment variables of sandboxes. SQLite gives its log the same permissions.
  if (path !== ":memory:") await (await open(path, "a", 0o600)).close();
  const signalOf = () => (isShared ? signalInProcess() : undefined);
  // A transaction takes the writers' lock: the file may be locked by another program, or its file system read-only.
  return await openDatabase(sqliteDialect(path, clock), clock, signalOf, (db) =>
    db.transaction().execute(async () => undefined),
  );
}

/** `url` is `postgres://…`. `onIdleError`: called when an unused connection breaks. */
export async function openPostgres(
  url: string,
  clock: Pick<Clock, "nowMs">,
  onIdleError: (error: Error) => void = () => undefined,
  { isShared = false }: OpenOptions = {},
): Promise<Database> {
  const { dialect, connections } = postgresDialect(url, onIdleError);
  const signalOf = (db: Kysely<Schema>): ChangeSignal | undefined => {
    const notify = async (channel: string) => void (await sql`select pg_notify(${channel}, '')`.execute(db));
    return isShared ? postgresSignal(url, notify, onIdleError, connections.onMoved) : undefined;
  };
  return await openDatabase(dialect, clock, signalOf, async (db) => {
    const asked = sql<{ it: string }>`select current_setting('transaction_read_only') as it`;
    if ((await asked.execute(db)).rows[0]?.it !== "on") return;
    connections.leave();
    throw readOnlyDatabase();
  });
}

async function openDatabase(
  dialect: Dialect,
  clock: Pick<Clock, "nowMs">,
  signalOf: (db: Kysely<Schema>) => ChangeSignal | undefined,
  checkWritable: (db: Kysely<Schema>) => Promise<void>,
): Promise<Database> {
  const db = new Kysely<Schema>({ dialect: withOutOfReach(dialect) });
  try {
    await migrate(db as Kysely<unknown>, clock.nowMs());
  } catch (error) {
    await db.destroy();
    throw error;
  }
  const signal = signalOf(db);
  const changeLog = signal && new ChangeLog(db, signal);
  const readiness = new Readiness(() => checkWritable(db));
  return {
    teams: new Teams(db),
    apiKeys: new ApiKeys(db),
    sandboxes: new Sandboxes(db, changeLog),
    operations: new Operations(db),
    portLinks: new PortLinks(db),
    fileLinks: new FileLinks(db),
    idempotencyKeys: new IdempotencyKeys(db),
    audit: new Audit(db),
    usage: new Usage(db),
    gateways: new Gateways(db),
    hosts: new Hosts(db),
    secrets: new Secrets(db),
    storedNames: new StoredNames(db),
    storageSweep: new StorageSweep(db),
    changeLog,
    ownership: new OwnerOfDatabase(db),
    ping: () => readiness.check(),
    close: () => db.destroy(),
  };
}
