import type { Kysely } from "kysely";
import type { Schema } from "./schema.ts";
import { Secrets } from "./secrets.ts";

const secretName = "file-links";

/** Signed links to files: the installation's secret behind them, and those for one use that have had it. */
export class FileLinks {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** The same for all gateways of a database, for good: `made` at the first call of all. */
  async secret(made: Uint8Array): Promise<Uint8Array> {
    const kept = await new Secrets(this.#db).keep(secretName, Buffer.from(made).toString("hex"));
    return Buffer.from(kept, "hex");
  }

  /** False: it was used before; of two at once only one gets true. Also drops what has expired, which the edge refuses by itself. */
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
