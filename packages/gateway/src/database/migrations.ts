/**
 * Schema versions, forward only. A version that has shipped is never edited: a change is a new one at the end. Each
 * runs in a transaction with the row that records it, so a crash leaves the old or the new version whole.
 */
import { type Kysely, sql } from "kysely";
import { isPostgres } from "./database-clock.ts";
import { makeStorageTables } from "./storage-tables.ts";

type Migration = (schema: Kysely<unknown>["schema"], db: Kysely<unknown>, nowMs: number) => Promise<void>;

const migrations: readonly Migration[] = [
  // oxlint-disable-next-line max-lines-per-function -- a schema, written down once
  async function version1(schema) {
    await schema
      .createTable("teams")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("name", "text", (c) => c.notNull())
      .addColumn("created_at", "bigint", (c) => c.notNull())
      .execute();

    await schema
      .createTable("api_keys")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("team_id", "text", (c) => c.notNull().references("teams.id"))
      .addColumn("name", "text", (c) => c.notNull())
      .addColumn("prefix", "text", (c) => c.notNull())
      .addColumn("secret_hash", "text", (c) => c.notNull().unique())
      .addColumn("created_at", "bigint", (c) => c.notNull())
      .addColumn("expires_at", "bigint")
      .addColumn("revoked_at", "bigint")
      .addColumn("last_used_at", "bigint")
      .execute();
    await schema.createIndex("api_keys_by_team").on("api_keys").column("team_id").execute();

    await schema
      .createTable("sandboxes")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("team_id", "text", (c) => c.notNull().references("teams.id"))
      .addColumn("ordinal", "bigint", (c) => c.notNull())
      .addColumn("name", "text", (c) => c.notNull())
      .addColumn("state", "text", (c) => c.notNull())
      .addColumn("generation", "integer", (c) => c.notNull())
      .addColumn("host_id", "text", (c) => c.notNull())
      .addColumn("runtime", "text", (c) => c.notNull())
      .addColumn("template", "text", (c) => c.notNull())
      .addColumn("cpus", "double precision", (c) => c.notNull())
      .addColumn("memory_mb", "integer", (c) => c.notNull())
      .addColumn("disk_mb", "integer", (c) => c.notNull())
      .addColumn("env", "text", (c) => c.notNull())
      .addColumn("metadata", "text", (c) => c.notNull())
      .addColumn("public_ports", "text", (c) => c.notNull())
      .addColumn("source_sandbox_id", "text", (c) => c.notNull())
      .addColumn("source_checkpoint_id", "text", (c) => c.notNull())
      .addColumn("error_message", "text", (c) => c.notNull())
      .addColumn("first_ran_at", "bigint")
      .addColumn("timeout_seconds", "integer", (c) => c.notNull())
      .addColumn("expires_at", "bigint")
      .addColumn("idle_suspend_seconds", "integer", (c) => c.notNull())
      .addColumn("auto_resume", "integer", (c) => c.notNull())
      .addColumn("created_at", "bigint", (c) => c.notNull())
      .addColumn("updated_at", "bigint", (c) => c.notNull())
      .execute();
    await schema.createIndex("sandboxes_by_team").on("sandboxes").columns(["team_id", "ordinal"]).execute();
    await schema.createIndex("sandboxes_by_expiry").on("sandboxes").column("expires_at").execute();

    await schema
      .createTable("sandbox_metadata")
      .addColumn("sandbox_id", "text", (c) => c.notNull().references("sandboxes.id").onDelete("cascade"))
      .addColumn("key", "text", (c) => c.notNull())
      .addColumn("value", "text", (c) => c.notNull())
      .addPrimaryKeyConstraint("sandbox_metadata_key", ["sandbox_id", "key"])
      .execute();

    await schema
      .createTable("operations")
      .addColumn("sandbox_id", "text", (c) => c.primaryKey().references("sandboxes.id").onDelete("cascade"))
      .addColumn("id", "text", (c) => c.notNull().unique())
      .addColumn("kind", "text", (c) => c.notNull())
      .addColumn("direction", "text", (c) => c.notNull())
      .addColumn("begun", "text", (c) => c.notNull())
      .addColumn("input", "text", (c) => c.notNull())
      .addColumn("failure", "text", (c) => c.notNull())
      .addColumn("actor", "text", (c) => c.notNull())
      .addColumn("request_id", "text", (c) => c.notNull())
      .addColumn("created_at", "bigint", (c) => c.notNull())
      .addColumn("updated_at", "bigint", (c) => c.notNull())
      .execute();

    await schema
      .createTable("port_links")
      .addColumn("token_hash", "text", (c) => c.primaryKey())
      .addColumn("sandbox_id", "text", (c) => c.notNull().references("sandboxes.id").onDelete("cascade"))
      .addColumn("team_id", "text", (c) => c.notNull())
      .addColumn("port", "integer", (c) => c.notNull())
      .addColumn("expires_at", "bigint", (c) => c.notNull())
      .execute();

    await schema
      .createTable("audit")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("at", "bigint", (c) => c.notNull())
      .addColumn("team_id", "text", (c) => c.notNull())
      .addColumn("actor", "text", (c) => c.notNull())
      .addColumn("action", "text", (c) => c.notNull())
      .addColumn("subject", "text", (c) => c.notNull())
      .addColumn("request_id", "text", (c) => c.notNull())
      .addColumn("result", "text", (c) => c.notNull())
      .addColumn("detail", "text", (c) => c.notNull())
      .execute();
    await schema.createIndex("audit_by_time").on("audit").column("at").execute();
    await schema.createIndex("audit_by_team").on("audit").columns(["team_id", "id"]).execute();
  },

  async function version2(schema, db, nowMs) {
    await schema
      .createTable("usage_intervals")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("sandbox_id", "text", (c) => c.notNull())
      .addColumn("team_id", "text", (c) => c.notNull().references("teams.id"))
      .addColumn("cpus", "double precision", (c) => c.notNull())
      .addColumn("memory_mb", "integer", (c) => c.notNull())
      .addColumn("started_at", "bigint", (c) => c.notNull())
      .addColumn("seen_at", "bigint", (c) => c.notNull())
      .addColumn("ended_at", "bigint")
      .execute();
    await schema
      .createIndex("usage_by_team")
      .on("usage_intervals")
      .columns(["team_id", "sandbox_id"])
      .execute();
    await schema
      .createIndex("usage_by_sandbox")
      .on("usage_intervals")
      .columns(["sandbox_id", "ended_at"])
      .execute();
    await schema.createIndex("usage_by_end").on("usage_intervals").column("ended_at").execute();
    // Running sandboxes are counted from now on: when they began to run is not known.
    await sql`
      insert into usage_intervals (id, sandbox_id, team_id, cpus, memory_mb, started_at, seen_at)
      select id || ':' || generation, id, team_id, cpus, memory_mb, cast(${nowMs} as bigint), cast(${nowMs} as bigint)
      from sandboxes where state = 'SANDBOX_STATE_RUNNING'`.execute(db);
  },

  async function version3(schema) {
    await schema
      .alterTable("sandboxes")
      .addColumn("egress", "text", (c) => c.notNull().defaultTo('{"mode":"open","domains":[],"cidrs":[]}'))
      .execute();
  },

  // The table stays empty: the first service that starts on a database of an earlier release becomes its owner.
  async function version4(schema) {
    await schema
      .createTable("owner")
      .addColumn("id", "integer", (c) => c.primaryKey())
      .addColumn("installation", "text", (c) => c.notNull())
      .addColumn("home", "text", (c) => c.notNull())
      .addColumn("host", "text", (c) => c.notNull())
      .addColumn("machine", "text", (c) => c.notNull())
      .addColumn("session", "text", (c) => c.notNull())
      .addColumn("claimed_at", "bigint", (c) => c.notNull())
      .addColumn("seen_at", "bigint", (c) => c.notNull())
      .execute();
  },

  async function version5(schema, db) {
    await schema
      .alterTable("sandboxes")
      .addColumn("on_timeout", "text", (c) => c.notNull().defaultTo("delete"))
      .execute();
    // Names are compared byte by byte on both databases: lists have one order, and the index serves prefixes.
    if (isPostgres(db)) await sql`alter table sandboxes alter column name type text collate "C"`.execute(db);
    await schema
      .createIndex("sandboxes_by_name")
      .on("sandboxes")
      .columns(["team_id", "name", "ordinal"])
      .execute();
  },

  async function version6(schema) {
    await schema
      .createTable("secrets")
      .addColumn("name", "text", (c) => c.primaryKey())
      .addColumn("value", "text", (c) => c.notNull())
      .execute();
    await schema
      .createTable("used_file_links")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("sandbox_id", "text", (c) => c.notNull().references("sandboxes.id").onDelete("cascade"))
      .addColumn("expires_at", "bigint", (c) => c.notNull())
      .execute();
    await schema
      .createIndex("used_file_links_by_expiry")
      .on("used_file_links")
      .column("expires_at")
      .execute();
    await schema
      .createIndex("used_file_links_by_sandbox")
      .on("used_file_links")
      .column("sandbox_id")
      .execute();
  },

  async function version7(schema) {
    await schema
      .createTable("idempotency_keys")
      .addColumn("team_id", "text", (c) => c.notNull().references("teams.id"))
      .addColumn("key", "text", (c) => c.notNull())
      .addColumn("request_hash", "text", (c) => c.notNull())
      .addColumn("sandbox_id", "text", (c) => c.notNull())
      .addColumn("sandbox_ids", "text", (c) => c.notNull())
      .addColumn("expires_at", "bigint", (c) => c.notNull())
      .addPrimaryKeyConstraint("idempotency_keys_key", ["team_id", "key"])
      .execute();
    await schema
      .createIndex("idempotency_keys_by_sandbox")
      .on("idempotency_keys")
      .column("sandbox_id")
      .execute();
    await schema
      .createIndex("idempotency_keys_by_expiry")
      .on("idempotency_keys")
      .column("expires_at")
      .execute();
  },

  async function version8(schema) {
    await schema
      .createTable("hosts")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("generation", "bigint", (c) => c.notNull())
      .addColumn("lease_until", "bigint", (c) => c.notNull())
      .addColumn("lost_at", "bigint")
      .addColumn("address", "text", (c) => c.notNull())
      .addColumn("zone", "text", (c) => c.notNull())
      .addColumn("cpu_class", "text", (c) => c.notNull())
      .addColumn("capacity_memory_mb", "bigint", (c) => c.notNull())
      .addColumn("reserved_memory_mb", "bigint", (c) => c.notNull())
      .addColumn("state", "text", (c) => c.notNull())
      .addColumn("version", "text", (c) => c.notNull())
      .execute();
  },

  async function version9(schema, db) {
    await schema
      .alterTable("operations")
      .addColumn("owner", "text", (c) => c.notNull().defaultTo(""))
      .execute();
    await schema
      .alterTable("operations")
      .addColumn("lease_until", "bigint", (c) => c.notNull().defaultTo(0))
      .execute();
    await schema
      .alterTable("operations")
      .addColumn("attempt", "integer", (c) => c.notNull().defaultTo(1))
      .execute();
    // Ordinals become unique. Equal ordinals of earlier releases get new ones at the front.
    await sql`
      update sandboxes set ordinal = (select max(ordinal) from sandboxes)
        + (select count(*) from sandboxes o where o.id <= sandboxes.id)
      where exists (
        select 1 from sandboxes o
        where o.team_id = sandboxes.team_id and o.ordinal = sandboxes.ordinal and o.id < sandboxes.id
      )`.execute(db);
    await schema.dropIndex("sandboxes_by_team").execute();
    await schema
      .createIndex("sandboxes_by_team")
      .unique()
      .on("sandboxes")
      .columns(["team_id", "ordinal"])
      .execute();
  },

  async function version10(schema, db) {
    await schema
      .createTable("changes")
      .addColumn("sequence", isPostgres(db) ? "bigserial" : "integer", (c) =>
        isPostgres(db) ? c.primaryKey() : c.primaryKey().autoIncrement(),
      )
      .addColumn("sandbox_id", "text", (c) => c.notNull())
      .addColumn("at", "bigint", (c) => c.notNull())
      .execute();
    await schema.createIndex("changes_by_time").on("changes").column("at").execute();
  },

  async function version11(schema) {
    await schema
      .createTable("gateways")
      .addColumn("owner", "text", (c) => c.primaryKey())
      .addColumn("lease_until", "bigint", (c) => c.notNull())
      .execute();
  },

  async function version12(schema) {
    await schema
      .alterTable("sandboxes")
      .addColumn("on_host_loss", "text", (c) => c.notNull().defaultTo("error"))
      .execute();
    await schema
      .alterTable("sandboxes")
      .addColumn("checkpoint_every_seconds", "integer", (c) => c.notNull().defaultTo(0))
      .execute();
    await schema.alterTable("sandboxes").addColumn("checkpoint_due_at", "bigint").execute();
    await schema
      .alterTable("sandboxes")
      .addColumn("image", "text", (c) => c.notNull().defaultTo(""))
      .execute();
    await schema
      .createIndex("sandboxes_by_checkpoint_due")
      .on("sandboxes")
      .column("checkpoint_due_at")
      .execute();
    await schema
      .createTable("image_packs")
      .addColumn("sandbox_id", "text", (c) => c.notNull())
      .addColumn("pack_id", "text", (c) => c.notNull())
      .addColumn("bytes", "bigint", (c) => c.notNull())
      .addPrimaryKeyConstraint("image_packs_key", ["sandbox_id", "pack_id"])
      .execute();
    await schema.createIndex("image_packs_by_pack").on("image_packs").column("pack_id").execute();
  },

  async function version13(schema, db) {
    await schema
      .alterTable("operations")
      .addColumn("number", "integer", (c) => c.notNull().defaultTo(0))
      .execute();
    // Not less than the generation that the operation began with, so that later operations get greater numbers.
    await sql`
      update operations set number =
        (select generation from sandboxes where sandboxes.id = operations.sandbox_id)`.execute(db);
    await schema.createIndex("sandboxes_by_host").on("sandboxes").column("host_id").execute();
    for (const [name, empty] of [
      ["runtimes", "[]"],
      ["labels", "{}"],
    ] as const)
      await schema
        .alterTable("hosts")
        .addColumn(name, "text", (c) => c.notNull().defaultTo(empty))
        .execute();
    await schema
      .alterTable("hosts")
      .addColumn("awaits_admission", "integer", (c) => c.notNull().defaultTo(0))
      .execute();
    await schema
      .createTable("host_watches")
      .addColumn("host_id", "text", (c) => c.primaryKey())
      .addColumn("watcher", "text", (c) => c.notNull())
      .addColumn("watch_until", "bigint", (c) => c.notNull())
      .execute();
  },

  async function version14(schema, db) {
    await schema
      .alterTable("teams")
      .addColumn("sandboxes", "integer", (c) => c.notNull().defaultTo(0))
      .execute();
    await sql`
      update teams set sandboxes = (
        select count(*) from sandboxes where team_id = teams.id and state <> 'SANDBOX_STATE_DELETING'
      )`.execute(db);
  },

  makeStorageTables,

  async function version16(schema) {
    for (const name of ["is_moving", "is_host_lost"])
      await schema
        .alterTable("sandboxes")
        .addColumn(name, "integer", (c) => c.notNull().defaultTo(0))
        .execute();
    await schema.createIndex("sandboxes_by_moving").on("sandboxes").columns(["is_moving", "state"]).execute();
  },

  async function version17(schema) {
    for (const [table, name] of [
      ["sandboxes", "created_by"],
      ["usage_intervals", "created_by"],
      ["usage_intervals", "sandbox_name"],
    ] as const)
      await schema
        .alterTable(table)
        .addColumn(name, "text", (c) => c.notNull().defaultTo(""))
        .execute();
  },

  async function version18(schema) {
    await schema
      .createTable("removed_sandboxes")
      .addColumn("id", "text", (c) => c.primaryKey())
      .addColumn("removed_at", "bigint", (c) => c.notNull())
      .execute();
    await schema.createIndex("removed_by_time").on("removed_sandboxes").column("removed_at").execute();
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
 * of a newer release. `upTo`: an older version, for tests of later migrations. Several starts at once are safe: the
 * first holds a lock, and the others find its work done.
 */
export async function migrate(kysely: Kysely<unknown>, nowMs: number, upTo = schemaVersion): Promise<number> {
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
      throw new Error(`the database has schema version ${found}; this release knows up to ${schemaVersion}`);
    }
    for (const [index, migration] of migrations.entries()) {
      const version = index + 1;
      if (version <= found || version > upTo) continue;
      await migration(tx.schema, tx as unknown as Kysely<unknown>, nowMs);
      await tx.insertInto("schema_version").values({ version, applied_at: nowMs }).execute();
    }
    return found;
  });
}
