import type { Kysely } from "kysely";
import type { Schema } from "./schema.ts";
import { Secrets } from "./secrets.ts";

const secretName = "file-links";

/** Signed links to files: the installation's secret that signs them, and the one-time links that were used. */
export class FileLinks {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** The secret of all gateways of this database, which never changes: `made` of the very first call. */
  async secret(made: Uint8Array): Promise<Uint8Array> {
    const kept = await new Secrets(this.#db).keep(secretName, Buffer.from(made).toString("hex"));
    return Buffer.from(kept, "hex");
  }

  /** False: the link was used before; of two calls at once only one gets true. Also drops expired links. */
  async use(link: { id: string; sandboxId: string; expiresAtMs: number }, nowMs: number): Promise<boolean> {
    return await this.#db.transaction().execute(async (tx) => {
      await tx.deleteFrom("used_file_links").where("expires_at", "<=", nowMs).execute();
      const { numInsertedOrUpdatedRows } = await tx
        .insertInto("used_file_links")
        .values({ id: link.id, sandbox_id: link.sandboxId, expires_at: link.expiresAtMs })
        .onConflict((conflict) => conflict.column("id").doNothing())
        .executeTakeFirst();
      return numInsertedOrUpdatedRows === 1n;
    });
  }
}
