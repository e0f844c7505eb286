/** The names of suspended sandboxes' images in storage (stored-names.ts), written together with the record. */
import type { Kysely } from "kysely";
import type { Schema } from "./schema.ts";
import { addPacks, dropName, keepPacks, type StoredPack } from "./stored-packs.ts";

/**
 * Names the image of a suspended sandbox, in the transaction that writes it into the record. A former image loses its
 * name. `image`: StoredImage as JSON; empty: the sandbox has no image any more.
 */
export async function nameImage(tx: Kysely<Schema>, sandboxId: string, image: string): Promise<void> {
  const wanted = image === "" ? undefined : (JSON.parse(image) as { key?: string; packs?: StoredPack[] });
  const name = wanted === undefined ? "" : `images/${wanted.key ?? sandboxId}`;
  const known = await tx
    .selectFrom("stored_names")
    .select("name")
    .where("sandbox_id", "=", sandboxId)
    .execute();
  for (const { name: other } of known) if (other !== name) await dropName(tx, other);
  if (wanted === undefined) return;
  const named = { sandbox_id: sandboxId, is_named: 1, keep_until: 0 };
  await tx
    .insertInto("stored_names")
    .values({ name, host_id: "", ...named })
    .onConflict((conflict) => conflict.column("name").doUpdateSet(named))
    .execute();
  const packs = (wanted.packs ?? []).map(({ id, bytes = 0 }) => ({ id, bytes }));
  await addPacks(tx, name, packs);
  await keepPacks(tx, name, packs);
}

/** Ids of the packs of the sandbox's image. */
export async function imagePacks(db: Kysely<Schema>, sandboxId: string): Promise<string[]> {
  const rows = await db
    .selectFrom("stored_packs as p")
    .innerJoin("stored_names as n", "n.name", "p.name")
    .select("p.pack_id")
    .where("n.sandbox_id", "=", sandboxId)
    .orderBy("p.pack_id")
    .execute();
  return rows.map(({ pack_id }) => pack_id);
}
