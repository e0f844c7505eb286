/**
 * Which packs in storage hold the image of which suspended sandbox: a sweep keeps what is named here. Written in the
 * transaction that takes the image into the sandbox's record, or out of it.
 */
import type { Kysely } from "kysely";
import type { Schema } from "./schema.ts";

/** `image`: StoredImage as JSON; empty: the sandbox has none any more. */
export async function nameImagePacks(db: Kysely<Schema>, sandboxId: string, image: string): Promise<void> {
  await db.deleteFrom("image_packs").where("sandbox_id", "=", sandboxId).execute();
  if (image === "") return;
  const { packs = [] } = JSON.parse(image) as { packs?: { id: string; bytes?: number }[] };
  // A pack may be named twice, by the manifest of the memory and by that of the disk.
  const bytesOf = new Map(packs.map(({ id, bytes = 0 }) => [id, bytes]));
  const rows = [...bytesOf].map(([id, bytes]) => ({ sandbox_id: sandboxId, pack_id: id, bytes }));
  if (rows.length > 0) await db.insertInto("image_packs").values(rows).execute();
}
