/** Every database the gateway can run on, for suites that all of them must pass. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Database, openPostgres, openSqlite } from "@cloche/gateway";
import {
  anAuditEntry,
  anOperation,
  type aSandbox,
} from "../../packages/gateway/src/testing/database-records.ts";
import { type PostgresCluster, startPostgres } from "../fixtures/postgres.ts";

export const clock = { nowMs: () => Date.UTC(2026, 0, 1) };
export const nowMs = clock.nowMs();

interface DatabaseKind {
  name: string;
  setUp(): Promise<void>;
  tearDown(): Promise<void>;
  /** Where the next empty database lies. */
  newPlace(): Promise<string>;
  open(place: string, isShared?: boolean): Promise<Database>;
}

let folder = "";
const sqlite: DatabaseKind = {
  name: "SQLite",
  async setUp() {
    folder = await mkdtemp(join(tmpdir(), "cloche-database-"));
  },
  tearDown: () => rm(folder, { recursive: true, force: true }),
  newPlace: async () => join(folder, `${(places += 1)}.db`),
  open: (place, isShared = false) => openSqlite(place, clock, { isShared }),
};
let places = 0;

let cluster: PostgresCluster;
const postgres: DatabaseKind = {
  name: "PostgreSQL",
  async setUp() {
    cluster = await startPostgres();
  },
  tearDown: () => cluster.stop(),
  newPlace: () => cluster.newDatabase(),
  open: (place, isShared = false) => openPostgres(place, clock, undefined, { isShared }),
};

export const databaseKinds = [sqlite, postgres];

export const rowOf = (record: ReturnType<typeof aSandbox>) => ({
  record,
  begin: anOperation({ sandboxId: record.id }),
  audit: anAuditEntry({ subject: record.id }),
});
