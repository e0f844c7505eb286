/** Leases are measured by the database's clock alone: those of gateways and hosts may differ. */
import { type Kysely, type RawBuilder, sql } from "kysely";
import type { Schema } from "./schema.ts";

/** The time of the statement, not of its transaction, in Unix milliseconds. */
export function databaseNowMs(db: Kysely<Schema>): RawBuilder<number> {
  return db.getExecutor().adapter.supportsMultipleConnections === true
    ? sql<number>`cast(extract(epoch from clock_timestamp()) * 1000 as bigint)`
    : sql<number>`cast(unixepoch('subsec') * 1000 as integer)`;
}
