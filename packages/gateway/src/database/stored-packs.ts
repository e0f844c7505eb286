/**
 * Which packs each name in storage needs, and what becomes garbage when a name is dropped: the rules for every writer
 * of `stored_packs` (see stored-names.ts). All writers lock rows in the order of packs, so that none deadlock.
 */
import { ClocheError } from "@cloche/protocol";
import type { Kysely, Transaction } from "kysely";
import { fromDatabaseNow, isPostgres } from "./database-clock.ts";
import type { Schema } from "./schema.ts";

/** Rows of one statement, because databases limit its parameters. */
const rowsAtOnce = 500;

export interface StoredPack {
  id: string;
  bytes: number;
}

/** Throws when a pack has no name. Locks the rows, so that no pack loses its last name before the transaction ends. */
export async function requireNamed(tx: Transaction<Schema>, packs: readonly StoredPack[]): Promise<void> {
  const named = new Set<string>();
  for (const some of inPieces(packs.map(({ id }) => id))) {
    const select = tx
      .selectFrom("stored_packs")
      .select("pack_id")
      .where("pack_id", "in", some)
      .orderBy("pack_id")
      .orderBy("name");
    const rows = await (isPostgres(tx) ? select.forShare() : select).execute();
    for (const { pack_id } of rows) named.add(pack_id);
  }
  const lost = packs.find(({ id }) => !named.has(id));
  if (lost !== undefined)
    throw new ClocheError("failed_precondition", `pack ${lost.id} is not named any more`);
}

export async function addPacks(
  tx: Kysely<Schema>,
  name: string,
  packs: readonly StoredPack[],
): Promise<void> {
  const bytesOf = new Map(packs.map(({ id, bytes }) => [id, bytes]));
  for (const some of inPieces([...bytesOf])) {
    await tx
      .insertInto("stored_packs")
      .values(some.map(([id, bytes]) => ({ pack_id: id, name, bytes })))
      .onConflict((conflict) => conflict.columns(["pack_id", "name"]).doNothing())
      .execute();
  }
}

/** Drops all other packs of the name. */
export async function keepPacks(
  tx: Kysely<Schema>,
  name: string,
  packs: readonly StoredPack[],
): Promise<void> {
  const kept = new Set(packs.map(({ id }) => id));
  const others = (await packsOf(tx, name, { lock: true })).filter(({ id }) => !kept.has(id));
  await dropPacks(tx, name, others);
}

/** The packs of the name, sorted by id, the order in which all writers lock them. */
export async function packsOf(
  db: Kysely<Schema>,
  name: string,
  { lock }: { lock: boolean } = { lock: false },
): Promise<StoredPack[]> {
  const select = db
    .selectFrom("stored_packs")
    .select(["pack_id", "bytes"])
    .where("name", "=", name)
    .orderBy("pack_id");
  const rows = await (lock && isPostgres(db) ? select.forUpdate() : select).execute();
  return rows.map(({ pack_id, bytes }) => ({ id: pack_id, bytes }));
}

/** Drops the name; packs without another name become garbage. Returns the bytes of these packs. */
export async function dropName(tx: Kysely<Schema>, name: string): Promise<number> {
  const freed = await dropPacks(tx, name, await packsOf(tx, name, { lock: true }));
  await tx.deleteFrom("stored_names").where("name", "=", name).execute();
  await addGarbage(tx, [name.startsWith("images/") ? `${name}/` : name]);
  return freed;
}

/** Two transactions at once may each still see the other's name of a pack; a later listing finds such packs. */
async function dropPacks(tx: Kysely<Schema>, name: string, packs: readonly StoredPack[]): Promise<number> {
  let freed = 0;
  for (const some of inPieces(packs)) {
    const ids = some.map(({ id }) => id);
    await tx.deleteFrom("stored_packs").where("name", "=", name).where("pack_id", "in", ids).execute();
    const rows = await tx
      .selectFrom("stored_packs")
      .select("pack_id")
      .distinct()
      .where("pack_id", "in", ids)
      .execute();
    const named = new Set(rows.map(({ pack_id }) => pack_id));
    const gone = some.filter(({ id }) => !named.has(id));
    await addGarbage(
      tx,
      gone.map(({ id }) => `packs/${id}`),
    );
    freed += gone.reduce((sum, { bytes }) => sum + bytes, 0);
  }
  return freed;
}

async function addGarbage(tx: Kysely<Schema>, keys: readonly string[]): Promise<void> {
  const at = fromDatabaseNow(tx);
  if (keys.length === 0) return;
  await tx
    .insertInto("storage_garbage")
    .values(keys.map((key) => ({ key, at })))
    .onConflict((conflict) => conflict.column("key").doNothing())
    .execute();
}

export function inPieces<Item>(items: readonly Item[]): Item[][] {
  const pieces: Item[][] = [];
  for (let at = 0; at < items.length; at += rowsAtOnce) pieces.push(items.slice(at, at + rowsAtOnce));
  return pieces;
}
