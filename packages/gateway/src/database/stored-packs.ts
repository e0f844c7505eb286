/**
 * Which packs each name in storage needs, and what becomes garbage when one goes: the rules that every writer of
 * `stored_packs` keeps (stored-names.ts says which). All lock rows in the order of packs, so that no two wait for each other.
 */
import { ClocheError } from "@cloche/protocol";
import type { Kysely, Transaction } from "kysely";
import { fromDatabaseNow, isPostgres } from "./database-clock.ts";
import type { Schema } from "./schema.ts";

/** Rows of one statement: databases bound its parameters. */
const ROWS_AT_ONCE = 500;

export interface StoredPack {
  id: string;
  bytes: number;
}

/** Their rows are locked until the transaction ends: nobody takes the last name of one away meanwhile. */
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
    throw new ClocheError("failed_precondition", `pack ${lost.id} is named by nobody any more`);
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

/** Lets go of all others of the name. */
export async function keepPacks(
  tx: Kysely<Schema>,
  name: string,
  packs: readonly StoredPack[],
): Promise<void> {
  const kept = new Set(packs.map(({ id }) => id));
  const others = (await packsOf(tx, name, { lock: true })).filter(({ id }) => !kept.has(id));
  await dropPacks(tx, name, others);
}

/** Sorted by id, the order in which all lock them. */
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

/** The name goes, and what nobody else names is garbage. Answers its bytes. */
export async function dropName(tx: Kysely<Schema>, name: string): Promise<number> {
  const freed = await dropPacks(tx, name, await packsOf(tx, name, { lock: true }));
  await tx.deleteFrom("stored_names").where("name", "=", name).execute();
  await addGarbage(tx, [name.startsWith("images/") ? `${name}/` : name]);
  return freed;
}

/** Two that go at once may each see the other's name still: a list of the store finds such packs. */
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
  for (let at = 0; at < items.length; at += ROWS_AT_ONCE) pieces.push(items.slice(at, at + ROWS_AT_ONCE));
  return pieces;
}
