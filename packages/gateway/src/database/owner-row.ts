/** The owner of this database (base/src/owner.ts): one row, or none before the first claim. */
import type { OwnedPlace, Owner } from "@cloche/base";
import type { Kysely } from "kysely";
import type { OwnerRow, Schema } from "./schema.ts";

/** The table has one row: its key is always this. */
const onlyRow = 1;

export class OwnerOfDatabase implements OwnedPlace {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  async owner(): Promise<Owner | undefined> {
    const row = await this.#db.selectFrom("owner").selectAll().executeTakeFirst();
    return row && fromRow(row);
  }

  async replaceOwner(found: Owner | undefined, next: Owner): Promise<boolean> {
    const row = toRow(next);
    if (found === undefined) {
      const { numInsertedOrUpdatedRows } = await this.#db
        .insertInto("owner")
        .values(row)
        .onConflict((conflict) => conflict.column("id").doNothing())
        .executeTakeFirst();
      return numInsertedOrUpdatedRows === 1n;
    }
    const { numUpdatedRows } = await this.#db
      .updateTable("owner")
      .set(row)
      .where("session", "=", found.session)
      .executeTakeFirst();
    return numUpdatedRows === 1n;
  }

  async ownerSeen(session: string, nowMs: number): Promise<boolean> {
    const { numUpdatedRows } = await this.#db
      .updateTable("owner")
      .set({ seen_at: nowMs })
      .where("session", "=", session)
      .executeTakeFirst();
    return numUpdatedRows === 1n;
  }

  async removeOwner(session: string): Promise<void> {
    await this.#db.deleteFrom("owner").where("session", "=", session).execute();
  }
}

const toRow = (owner: Owner): OwnerRow => ({
  id: onlyRow,
  installation: owner.installation,
  home: owner.home,
  host: owner.host,
  machine: owner.machine,
  session: owner.session,
  claimed_at: owner.claimedAtMs,
  seen_at: owner.seenAtMs,
});

const fromRow = (row: OwnerRow): Owner => ({
  installation: row.installation,
  home: row.home,
  host: row.host,
  machine: row.machine,
  session: row.session,
  claimedAtMs: Number(row.claimed_at),
  seenAtMs: Number(row.seen_at),
});
