/** The tables about storage (stored-names.ts), a part of version 1 of the schema. */
import type { Kysely } from "kysely";

// oxlint-disable-next-line max-lines-per-function -- a schema, written down once
export async function makeStorageTables(
  schema: Kysely<unknown>["schema"],
  db: Kysely<unknown>,
): Promise<void> {
  await schema
    .createTable("stored_names")
    .addColumn("name", "text", (c) => c.primaryKey())
    .addColumn("host_id", "text", (c) => c.notNull())
    .addColumn("sandbox_id", "text", (c) => c.notNull())
    .addColumn("is_named", "integer", (c) => c.notNull())
    .addColumn("keep_until", "bigint", (c) => c.notNull())
    .execute();
  await schema
    .createIndex("stored_names_by_time")
    .on("stored_names")
    .columns(["is_named", "keep_until"])
    .execute();
  await schema.createIndex("stored_names_by_sandbox").on("stored_names").column("sandbox_id").execute();
  await schema
    .createTable("stored_packs")
    .addColumn("pack_id", "text", (c) => c.notNull())
    .addColumn("name", "text", (c) => c.notNull())
    .addColumn("bytes", "bigint", (c) => c.notNull())
    .addPrimaryKeyConstraint("stored_packs_key", ["pack_id", "name"])
    .execute();
  await schema.createIndex("stored_packs_by_name").on("stored_packs").column("name").execute();
  await schema
    .createTable("checkpoints")
    .addColumn("id", "text", (c) => c.primaryKey())
    .addColumn("team_id", "text", (c) => c.notNull().references("teams.id"))
    .addColumn("sandbox_id", "text", (c) => c.notNull())
    .addColumn("created_at", "text", (c) => c.notNull())
    .addColumn("size_bytes", "bigint", (c) => c.notNull())
    .addColumn("header", "text", (c) => c.notNull())
    .execute();
  await schema
    .createIndex("checkpoints_by_team")
    .on("checkpoints")
    .columns(["team_id", "created_at", "id"])
    .execute();
  await schema
    .createIndex("checkpoints_by_sandbox")
    .on("checkpoints")
    .columns(["team_id", "sandbox_id", "created_at", "id"])
    .execute();
  await schema
    .createTable("storage_garbage")
    .addColumn("key", "text", (c) => c.primaryKey())
    .addColumn("at", "bigint", (c) => c.notNull())
    .execute();
  await schema.createIndex("storage_garbage_by_time").on("storage_garbage").column("at").execute();
  await schema
    .createTable("storage_sweep")
    .addColumn("id", "integer", (c) => c.primaryKey())
    .addColumn("host_id", "text", (c) => c.notNull())
    .addColumn("lease_until", "bigint", (c) => c.notNull())
    .addColumn("listed_at", "bigint", (c) => c.notNull())
    .execute();
  await (db as Kysely<{ storage_sweep: object }>)
    .insertInto("storage_sweep")
    .values({ id: 1, host_id: "", lease_until: 0, listed_at: 0 } as object)
    .execute();
}
