/**
 * The names of objects in storage. A sweep removes every object that no row names.
 *
 *   stored_names   a manifest (`checkpoints/<id>`) or an image's folder (`images/<key>`), held by a host or named
 *   stored_packs   the packs that each name needs
 *   checkpoints    the checkpoints that teams see
 *   storage_garbage  keys that no row names any more
 *
 *   held ──named──▶ named ──dropped──▶ (no row; its keys, and packs without another name, are garbage)
 *     └ keep_until passes ──▶ the same
 *
 * A pack that has lost its last name never gets a name again: an inherited pack must have a name at that moment, and
 * its rows are locked until the new name is written. So a sweep needs no lock: an unnamed pack stays unnamed. New packs
 * are younger than a day while their name is held, and a sweep skips them. All times are by the database's clock.
 */
import { ClocheError, type ListPosition } from "@cloche/protocol";
import { type Kysely, type RawBuilder, sql, type Transaction } from "kysely";
import { fromDatabaseNow, isPostgres } from "./database-clock.ts";
import type { Schema } from "./schema.ts";
import { addPacks, dropName, keepPacks, packsOf, requireNamed, type StoredPack } from "./stored-packs.ts";

export interface HeldObject {
  /** `checkpoints/<id>` or `images/<key>`. */
  name: string;
  /** Several hosts may hold the name, as of a template. */
  isShared: boolean;
  inherited: readonly StoredPack[];
  own: readonly StoredPack[];
}

export interface NamedCheckpoint {
  id: string;
  teamId: string;
  sandboxId: string;
  createdAt: string;
  sizeBytes: number;
  /** JSON, as the host wrote it. */
  header: string;
}

type CheckpointWithPacks = NamedCheckpoint & { packs: StoredPack[] };

export class StoredNames {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /**
   * Holds a name for this host. Throws failed_precondition when a pack of `inherited` has no name, permission_denied
   * when another host holds the name.
   */
  async hold(hostId: string, { name, isShared, inherited, own }: HeldObject, holdMs: number): Promise<void> {
    await this.#db.transaction().execute(async (tx) => {
      await requireNamed(tx, inherited);
      const known = await nameRow(tx, name);
      if (known?.is_named === 1) return;
      if (known !== undefined && known.host_id !== hostId && !isShared)
        throw new ClocheError("permission_denied", `name: ${name} is held by another host`);
      const keep = { host_id: hostId, keep_until: this.#fromNow(holdMs) };
      await tx
        .insertInto("stored_names")
        .values({ name, sandbox_id: "", is_named: 0, ...keep })
        .onConflict((conflict) => conflict.column("name").doUpdateSet(keep))
        .execute();
      await addPacks(tx, name, [...inherited, ...own]);
      // The object was stored anew: drop its former packs.
      if (isShared && own.length > 0) await keepPacks(tx, name, own);
      await tx.deleteFrom("storage_garbage").where("key", "=", name).execute();
    });
  }

  /** Drops a held name of this host, whose upload failed. */
  async release(hostId: string, name: string): Promise<void> {
    await this.#db.transaction().execute(async (tx) => {
      const known = await nameRow(tx, name);
      if (known?.is_named === 0 && known.host_id === hostId) await dropName(tx, name);
    });
  }

  /** Names a checkpoint. Throws failed_precondition if not held by the host, permission_denied for another team. */
  async nameCheckpoint(hostId: string, { packs, ...checkpoint }: CheckpointWithPacks): Promise<void> {
    const { id, teamId, sandboxId } = checkpoint;
    const name = `checkpoints/${id}`;
    await this.#db.transaction().execute(async (tx) => {
      const known = await nameRow(tx, name);
      if (known?.is_named === 1) {
        if ((await checkpointRow(tx, teamId, id)) !== undefined) return;
        throw new ClocheError("permission_denied", `checkpoint ${id} is another team's`);
      }
      const isHeld = await tx
        .selectFrom("stored_names")
        .select("name")
        .where("name", "=", name)
        .where("host_id", "=", hostId)
        .where("keep_until", ">", this.#fromNow())
        .executeTakeFirst();
      if (isHeld === undefined)
        throw new ClocheError("failed_precondition", `checkpoint ${id} is not held by this host any more`);
      await requireTeam(tx, teamId, sandboxId);
      await addPacks(tx, name, packs);
      await keepPacks(tx, name, packs);
      await tx.updateTable("stored_names").set({ is_named: 1 }).where("name", "=", name).execute();
      await tx
        .insertInto("checkpoints")
        .values({
          id,
          team_id: teamId,
          sandbox_id: sandboxId,
          created_at: checkpoint.createdAt,
          size_bytes: checkpoint.sizeBytes,
          header: checkpoint.header,
        })
        .execute();
    });
  }

  async checkpoint(teamId: string, id: string): Promise<CheckpointWithPacks | undefined> {
    const row = await checkpointRow(this.#db, teamId, id);
    if (row === undefined) return undefined;
    return { ...row, packs: await packsOf(this.#db, `checkpoints/${id}`) };
  }

  /** Newest first. */
  async checkpoints(query: {
    teamId: string;
    sandboxId?: string;
    limit: number;
    after?: ListPosition | undefined;
  }): Promise<NamedCheckpoint[]> {
    const { teamId, sandboxId = "", limit, after } = query;
    let select = this.#db
      .selectFrom("checkpoints as c")
      .selectAll()
      .where("team_id", "=", teamId)
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .limit(limit);
    if (sandboxId !== "") select = select.where("sandbox_id", "=", sandboxId);
    if (after !== undefined)
      select = select.where(sql<boolean>`(c.created_at, c.id) < (${after.created_at}, ${after.id})`);
    return (await select.execute()).map(checkpointFromRow);
  }

  /** How many checkpoints the team has, and the total size of their disks. */
  async totals(teamId: string): Promise<{ count: number; bytes: number }> {
    const row = await this.#db
      .selectFrom("checkpoints")
      .select((e) => [e.fn.countAll().as("count"), e.fn.sum("size_bytes").as("bytes")])
      .where("team_id", "=", teamId)
      .executeTakeFirstOrThrow();
    return { count: Number(row.count), bytes: Number(row.bytes ?? 0) };
  }

  /** Returns the bytes of packs that lost their last name; undefined: the team has no such checkpoint. */
  async dropCheckpoint(teamId: string, id: string): Promise<number | undefined> {
    return await this.#db.transaction().execute(async (tx) => {
      const { numDeletedRows } = await tx
        .deleteFrom("checkpoints")
        .where("id", "=", id)
        .where("team_id", "=", teamId)
        .executeTakeFirst();
      return numDeletedRows === 1n ? await dropName(tx, `checkpoints/${id}`) : undefined;
    });
  }

  #fromNow(ms = 0): RawBuilder<number> {
    return fromDatabaseNow(this.#db, ms);
  }
}

async function requireTeam(tx: Transaction<Schema>, teamId: string, sandboxId: string): Promise<void> {
  const team = await tx.selectFrom("teams").select("id").where("id", "=", teamId).executeTakeFirst();
  const sandbox = await tx
    .selectFrom("sandboxes")
    .select("team_id")
    .where("id", "=", sandboxId)
    .executeTakeFirst();
  // A deleted sandbox keeps its checkpoints, so a missing sandbox is allowed.
  if (team === undefined || (sandbox !== undefined && sandbox.team_id !== teamId))
    throw new ClocheError("permission_denied", `team_id: ${teamId} does not have sandbox ${sandboxId}`);
}

/** The row of the name, locked until the transaction ends. */
async function nameRow(tx: Transaction<Schema>, name: string) {
  const select = tx.selectFrom("stored_names").select(["is_named", "host_id"]).where("name", "=", name);
  return await (isPostgres(tx) ? select.forUpdate() : select).executeTakeFirst();
}

async function checkpointRow(
  db: Kysely<Schema>,
  teamId: string,
  id: string,
): Promise<NamedCheckpoint | undefined> {
  const row = await db
    .selectFrom("checkpoints")
    .selectAll()
    .where("id", "=", id)
    .where("team_id", "=", teamId)
    .executeTakeFirst();
  return row && checkpointFromRow(row);
}

const checkpointFromRow = (row: Schema["checkpoints"]): NamedCheckpoint => ({
  id: row.id,
  teamId: row.team_id,
  sandboxId: row.sandbox_id,
  createdAt: row.created_at,
  sizeBytes: row.size_bytes,
  header: row.header,
});
