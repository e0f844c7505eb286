/** The gateways of one database. Each has a lease, by the database's clock, so that all know how many there are. */
import type { Kysely } from "kysely";
import { fromDatabaseNow } from "./database-clock.ts";
import type { Schema } from "./schema.ts";

export class Gateways {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** Takes or renews the gateway's lease. Returns how many gateways have a lease, this one included. */
  async renew(owner: string, leaseMs: number): Promise<number> {
    const until = fromDatabaseNow(this.#db, leaseMs);
    await this.#db
      .insertInto("gateways")
      .values({ owner, lease_until: until })
      .onConflict((conflict) => conflict.column("owner").doUpdateSet({ lease_until: until }))
      .execute();
    await this.#db.deleteFrom("gateways").where("lease_until", "<=", fromDatabaseNow(this.#db)).execute();
    const row = await this.#db
      .selectFrom("gateways")
      .select((e) => e.fn.countAll().as("count"))
      .executeTakeFirstOrThrow();
    return Number(row.count);
  }

  async leave(owner: string): Promise<void> {
    await this.#db.deleteFrom("gateways").where("owner", "=", owner).execute();
  }
}
