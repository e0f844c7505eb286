/** Leases are measured by the database's clock only, because the clocks of gateways and hosts may differ. */
import { type Kysely, type RawBuilder, sql } from "kysely";
import type { Schema } from "./schema.ts";

export const isPostgres = <T>(db: Kysely<T>): boolean =>
  db.getExecutor().adapter.supportsMultipleConnections === true;

/** When the transaction began, the same for all its statements, plus `ms`; in Unix milliseconds. */
export function fromDatabaseNow(db: Kysely<Schema>, ms = 0): RawBuilder<number> {
  return isPostgres(db)
    ? sql<number>`cast(extract(epoch from transaction_timestamp()) * 1000 as bigint) + cast(${ms} as bigint)`
    : sql<number>`now_ms() + cast(${ms} as integer)`;
}
