/**
 * The tables of schema.ts with their indexes, a part of version 1 of the schema; those about storage are in storage-tables.ts. Written
 * down once, and never edited once it has shipped (migrations.ts).
 */
import { type Kysely, sql } from "kysely";
import { isPostgres } from "./database-clock.ts";

type SchemaBuilder = Kysely<unknown>["schema"];

export async function makeTeamTables(schema: SchemaBuilder): Promise<void> {
  await schema
    .createTable("teams")
    .addColumn("id", "text", (c) => c.primaryKey())
    .addColumn("name", "text", (c) => c.notNull())
    .addColumn("created_at", "bigint", (c) => c.notNull())
    .addColumn("sandboxes", "integer", (c) => c.notNull().defaultTo(0))
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
    .createTable("secrets")
    .addColumn("name", "text", (c) => c.primaryKey())
    .addColumn("value", "text", (c) => c.notNull())
    .execute();
}

// oxlint-disable-next-line max-lines-per-function -- a table and its indexes
export async function makeSandboxTable(schema: SchemaBuilder, db: Kysely<unknown>): Promise<void> {
  await schema
    .createTable("sandboxes")
    .addColumn("id", "text", (c) => c.primaryKey())
    .addColumn("team_id", "text", (c) => c.notNull().references("teams.id"))
    .addColumn("ordinal", "bigint", (c) => c.notNull())
    // Names are compared byte by byte on both databases: lists have one order, and the index serves prefixes.
    .addColumn("name", isPostgres(db) ? sql`text collate "C"` : "text", (c) => c.notNull())
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
    .addColumn("egress", "text", (c) => c.notNull())
    .addColumn("source_sandbox_id", "text", (c) => c.notNull())
    .addColumn("source_checkpoint_id", "text", (c) => c.notNull())
    .addColumn("error_message", "text", (c) => c.notNull())
    .addColumn("first_ran_at", "bigint")
    .addColumn("timeout_seconds", "integer", (c) => c.notNull())
    .addColumn("expires_at", "bigint")
    .addColumn("on_timeout", "text", (c) => c.notNull())
    .addColumn("idle_suspend_seconds", "integer", (c) => c.notNull())
    .addColumn("auto_resume", "integer", (c) => c.notNull())
    .addColumn("on_host_loss", "text", (c) => c.notNull())
    .addColumn("checkpoint_every_seconds", "integer", (c) => c.notNull())
    .addColumn("checkpoint_due_at", "bigint")
    .addColumn("image", "text", (c) => c.notNull())
    .addColumn("is_moving", "integer", (c) => c.notNull())
    .addColumn("is_host_lost", "integer", (c) => c.notNull())
    .addColumn("created_by", "text", (c) => c.notNull())
    .addColumn("created_at", "bigint", (c) => c.notNull())
    .addColumn("updated_at", "bigint", (c) => c.notNull())
    .execute();
  for (const [name, columns] of [
    ["sandboxes_by_name", ["team_id", "name", "ordinal"]],
    ["sandboxes_by_expiry", ["expires_at"]],
    ["sandboxes_by_checkpoint_due", ["checkpoint_due_at"]],
    ["sandboxes_by_host", ["host_id"]],
    ["sandboxes_by_moving", ["is_moving", "state"]],
  ] as const)
    await schema
      .createIndex(name)
      .on("sandboxes")
      .columns([...columns])
      .execute();
  await schema
    .createIndex("sandboxes_by_team")
    .unique()
    .on("sandboxes")
    .columns(["team_id", "ordinal"])
    .execute();
}

/** Of a sandbox each, and gone with it. */
export async function makeTablesOfSandboxes(schema: SchemaBuilder): Promise<void> {
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
    .addColumn("owner", "text", (c) => c.notNull())
    .addColumn("lease_until", "bigint", (c) => c.notNull())
    .addColumn("attempt", "integer", (c) => c.notNull())
    .addColumn("number", "integer", (c) => c.notNull())
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
    .createTable("used_file_links")
    .addColumn("id", "text", (c) => c.primaryKey())
    .addColumn("sandbox_id", "text", (c) => c.notNull().references("sandboxes.id").onDelete("cascade"))
    .addColumn("expires_at", "bigint", (c) => c.notNull())
    .execute();
  await schema.createIndex("used_file_links_by_expiry").on("used_file_links").column("expires_at").execute();
  await schema.createIndex("used_file_links_by_sandbox").on("used_file_links").column("sandbox_id").execute();
}

/** What outlives the sandboxes that it names. */
export async function makeTablesOfHistory(schema: SchemaBuilder): Promise<void> {
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
    .createTable("removed_sandboxes")
    .addColumn("id", "text", (c) => c.primaryKey())
    .addColumn("removed_at", "bigint", (c) => c.notNull())
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
  await schema
    .createTable("usage_intervals")
    .addColumn("id", "text", (c) => c.primaryKey())
    .addColumn("sandbox_id", "text", (c) => c.notNull())
    .addColumn("team_id", "text", (c) => c.notNull().references("teams.id"))
    .addColumn("cpus", "double precision", (c) => c.notNull())
    .addColumn("memory_mb", "integer", (c) => c.notNull())
    .addColumn("sandbox_name", "text", (c) => c.notNull())
    .addColumn("created_by", "text", (c) => c.notNull())
    .addColumn("started_at", "bigint", (c) => c.notNull())
    .addColumn("seen_at", "bigint", (c) => c.notNull())
    .addColumn("ended_at", "bigint")
    .execute();
  for (const [name, table, columns] of [
    ["idempotency_keys_by_sandbox", "idempotency_keys", ["sandbox_id"]],
    ["idempotency_keys_by_expiry", "idempotency_keys", ["expires_at"]],
    ["removed_by_time", "removed_sandboxes", ["removed_at"]],
    ["audit_by_time", "audit", ["at"]],
    ["audit_by_team", "audit", ["team_id", "id"]],
    ["usage_by_team", "usage_intervals", ["team_id", "sandbox_id"]],
    ["usage_by_sandbox", "usage_intervals", ["sandbox_id", "ended_at"]],
    ["usage_by_end", "usage_intervals", ["ended_at"]],
  ] as const)
    await schema
      .createIndex(name)
      .on(table)
      .columns([...columns])
      .execute();
}

/** Who works on this database, and what they tell each other. */
export async function makeClusterTables(schema: SchemaBuilder, db: Kysely<unknown>): Promise<void> {
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
  await schema
    .createTable("hosts")
    .addColumn("id", "text", (c) => c.primaryKey())
    .addColumn("generation", "bigint", (c) => c.notNull())
    .addColumn("lease_until", "bigint", (c) => c.notNull())
    .addColumn("lost_at", "bigint")
    .addColumn("address", "text", (c) => c.notNull())
    .addColumn("cpu_class", "text", (c) => c.notNull())
    .addColumn("capacity_memory_mb", "bigint", (c) => c.notNull())
    .addColumn("reserved_memory_mb", "bigint", (c) => c.notNull())
    .addColumn("state", "text", (c) => c.notNull())
    .addColumn("version", "text", (c) => c.notNull())
    .addColumn("runtimes", "text", (c) => c.notNull())
    .addColumn("awaits_admission", "integer", (c) => c.notNull())
    .execute();
  await schema
    .createTable("host_watches")
    .addColumn("host_id", "text", (c) => c.primaryKey())
    .addColumn("watcher", "text", (c) => c.notNull())
    .addColumn("watch_until", "bigint", (c) => c.notNull())
    .execute();
  await schema
    .createTable("gateways")
    .addColumn("owner", "text", (c) => c.primaryKey())
    .addColumn("lease_until", "bigint", (c) => c.notNull())
    .execute();
  await schema
    .createTable("changes")
    .addColumn("sequence", isPostgres(db) ? "bigserial" : "integer", (c) =>
      isPostgres(db) ? c.primaryKey() : c.primaryKey().autoIncrement(),
    )
    .addColumn("sandbox_id", "text", (c) => c.notNull())
    .addColumn("at", "bigint", (c) => c.notNull())
    .execute();
  await schema.createIndex("changes_by_time").on("changes").column("at").execute();
}
