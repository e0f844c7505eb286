/**
 * Secrets that the gateways of a database share, by name. Values that must not be readable in the database are sealed
 * before (trust's seal).
 */
import type { Kysely } from "kysely";
import type { Schema } from "./schema.ts";

export interface Secret {
  name: string;
  value: string;
}

export class Secrets {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** Returns the value of the name; the very first call sets it to `value`. */
  async keep(name: string, value: string): Promise<string> {
    await this.add(name, value);
    const row = await this.#db
      .selectFrom("secrets")
      .select("value")
      .where("name", "=", name)
      .executeTakeFirstOrThrow();
    return row.value;
  }

  /** False: the name has a value already, which stays. */
  async add(name: string, value: string): Promise<boolean> {
    const { numInsertedOrUpdatedRows } = await this.#db
      .insertInto("secrets")
      .values({ name, value })
      .onConflict((conflict) => conflict.column("name").doNothing())
      .executeTakeFirst();
    return numInsertedOrUpdatedRows === 1n;
  }

  /** Compare-and-set. False: the value is not `found` any more. */
  async replace({ name, value }: Secret, next: string): Promise<boolean> {
    const { numUpdatedRows } = await this.#db
      .updateTable("secrets")
      .set({ value: next })
      .where("name", "=", name)
      .where("value", "=", value)
      .executeTakeFirst();
    return numUpdatedRows === 1n;
  }

  /** Secrets whose name begins with `prefix`, by name. `prefix`: letters, digits, `-` and `/`. */
  async list(prefix: string): Promise<Secret[]> {
    return await this.#db
      .selectFrom("secrets")
      .selectAll()
      .where("name", "like", `${prefix}%`)
      .orderBy("name")
      .execute();
  }

  async remove(name: string): Promise<void> {
    await this.#db.deleteFrom("secrets").where("name", "=", name).execute();
  }
}
