/** What the gateways of a database keep for themselves, by name: the first value counts, for good. */
import type { Kysely } from "kysely";
import type { Schema } from "./schema.ts";

export class Secrets {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** The value of the name: `value` at the first call of all, else what that one put there. */
  async keep(name: string, value: string): Promise<string> {
    await this.#db
      .insertInto("secrets")
      .values({ name, value })
      .onConflict((conflict) => conflict.column("name").doNothing())
      .execute();
    const row = await this.#db
      .selectFrom("secrets")
      .select("value")
      .where("name", "=", name)
      .executeTakeFirstOrThrow();
    return row.value;
  }
}
