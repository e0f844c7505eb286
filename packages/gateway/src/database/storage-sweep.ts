/**
 * Queries for the sweep of storage: which host sweeps, which keys are garbage, and which objects have no name. A host
 * does the sweep, because gateways have no access to the store. Two sweeps at once do no harm: an unnamed object never
 * gets a name again (stored-names.ts).
 */
import { type Kysely, type RawBuilder, sql } from "kysely";
import { fromDatabaseNow, isPostgres } from "./database-clock.ts";
import type { Schema } from "./schema.ts";
import { dropName, inPieces } from "./stored-packs.ts";

export class StorageSweep {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** Lets only this host sweep, for `leaseMs`; undefined: another host does. `isListDue`: list the whole store too. */
  async claim(
    hostId: string,
    { leaseMs, listEveryMs }: { leaseMs: number; listEveryMs: number },
  ): Promise<{ isListDue: boolean } | undefined> {
    const row = await this.#db
      .updateTable("storage_sweep")
      .set({ host_id: hostId, lease_until: this.#fromNow(leaseMs) })
      .where("id", "=", 1)
      .where((e) => e.or([e("host_id", "=", hostId), e("lease_until", "<=", this.#fromNow())]))
      .returning([sql<number>`listed_at <= ${this.#fromNow(-listEveryMs)}`.as("due")])
      .executeTakeFirst();
    return row && { isListDue: Boolean(row.due) };
  }

  /** Turns names that were held for too long into garbage, at most `limit`. Returns how many. */
  async endHolds(limit: number): Promise<number> {
    return await this.#db.transaction().execute(async (tx) => {
      const select = tx
        .selectFrom("stored_names")
        .select("name")
        .where("is_named", "=", 0)
        .where("keep_until", "<=", this.#fromNow())
        .limit(limit);
      const over = await (isPostgres(tx) ? select.forUpdate().skipLocked() : select).execute();
      for (const { name } of over) await dropName(tx, name);
      return over.length;
    });
  }

  /** Keys to remove from storage, oldest first, that were dropped at least `keptMs` ago. */
  async garbage(limit: number, keptMs: number): Promise<string[]> {
    const rows = await this.#db
      .selectFrom("storage_garbage")
      .select("key")
      .where("at", "<=", this.#fromNow(-keptMs))
      .orderBy("at")
      .limit(limit)
      .execute();
    return rows.map(({ key }) => key);
  }

  /** Notes that these keys are no longer in storage. `isListed`: the whole store was listed. */
  async swept(keys: readonly string[], isListed: boolean): Promise<void> {
    for (const some of inPieces(keys))
      await this.#db.deleteFrom("storage_garbage").where("key", "in", some).execute();
    if (isListed) await this.#db.updateTable("storage_sweep").set({ listed_at: this.#fromNow() }).execute();
  }

  /** Those of the keys that have no name. Ask only for objects that are more than a day old. */
  async unnamed(keys: readonly string[]): Promise<string[]> {
    const wanted = keys.map((key) => ({ key, ...namesOf(key) }));
    const packs = wanted.flatMap(({ pack }) => pack ?? []);
    const names = wanted.flatMap(({ name }) => name ?? []);
    const named = new Set<string>();
    for (const some of inPieces(packs)) {
      const rows = await this.#db
        .selectFrom("stored_packs")
        .select("pack_id")
        .distinct()
        .where("pack_id", "in", some)
        .execute();
      for (const { pack_id } of rows) named.add(pack_id);
    }
    for (const some of inPieces(names)) {
      const rows = await this.#db
        .selectFrom("stored_names")
        .select("name")
        .where("name", "in", some)
        .execute();
      for (const { name } of rows) named.add(name);
    }
    return wanted
      .filter(({ pack, name }) => (pack ?? name) !== undefined && !named.has(pack ?? name ?? ""))
      .map(({ key }) => key);
  }

  #fromNow(ms = 0): RawBuilder<number> {
    return fromDatabaseNow(this.#db, ms);
  }
}

/** The pack or name whose row keeps an object; neither: not an object of ours, never removed. */
function namesOf(key: string): { pack?: string; name?: string } {
  const [folder, first = "", ...rest] = key.split("/");
  if (folder === "packs" && rest.length === 0) return { pack: first };
  if (folder === "checkpoints" && rest.length === 0) return { name: key };
  if (folder === "images" && rest.length === 1) return { name: `images/${first}` };
  return {};
}
