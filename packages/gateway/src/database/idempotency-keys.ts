/**
 * Idempotency keys: which sandboxes the first call with a key made. A key is written in the transaction that inserts
 * these sandboxes, so a crash leaves both or neither, and of two calls at once with the same key only one makes
 * sandboxes.
 *
 *   (none) ──insert of the sandboxes──▶ remembered ──24 h──▶ swept
 *                                            └── nothing was made in the end: freed with the removal of the record
 */
import type { Kysely } from "kysely";
import type { Schema } from "./schema.ts";

export interface KeyedCall {
  teamId: string;
  key: string;
  /** Hash of the method and the other fields. */
  requestHash: string;
  /** In the order of the answer. */
  sandboxIds: readonly string[];
  expiresAtMs: number;
}

/** Another call has the key; nothing was written. */
export class KeyTaken extends Error {
  override readonly name = "KeyTaken";

  constructor() {
    super("another call has the idempotency key");
  }
}

export class IdempotencyKeys {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** Undefined: no call of the team used the key within the time that keys are remembered. */
  async find(teamId: string, key: string, nowMs: number): Promise<KeyedCall | undefined> {
    const row = await this.#db
      .selectFrom("idempotency_keys")
      .selectAll()
      .where("team_id", "=", teamId)
      .where("key", "=", key)
      .where("expires_at", ">", nowMs)
      .executeTakeFirst();
    return (
      row && {
        teamId: row.team_id,
        key: row.key,
        requestHash: row.request_hash,
        sandboxIds: JSON.parse(row.sandbox_ids) as string[],
        expiresAtMs: row.expires_at,
      }
    );
  }

  /** Drops expired keys. */
  async sweep(nowMs: number): Promise<void> {
    await sweepKeys(this.#db, nowMs);
  }
}

/** Call it within the transaction that inserts the sandboxes. Throws KeyTaken. */
export async function insertKey(db: Kysely<Schema>, call: KeyedCall, nowMs: number): Promise<void> {
  await sweepKeys(db, nowMs);
  const { numInsertedOrUpdatedRows } = await db
    .insertInto("idempotency_keys")
    .values({
      team_id: call.teamId,
      key: call.key,
      request_hash: call.requestHash,
      sandbox_id: call.sandboxIds[0] ?? "",
      sandbox_ids: JSON.stringify(call.sandboxIds),
      expires_at: call.expiresAtMs,
    })
    .onConflict((conflict) => conflict.columns(["team_id", "key"]).doNothing())
    .executeTakeFirst();
  if (numInsertedOrUpdatedRows !== 1n) throw new KeyTaken();
}

/** Call it within the transaction that removes the first sandbox of a call that made nothing. */
export async function freeKeyOf(db: Kysely<Schema>, sandboxId: string): Promise<void> {
  await db.deleteFrom("idempotency_keys").where("sandbox_id", "=", sandboxId).execute();
}

async function sweepKeys(db: Kysely<Schema>, nowMs: number): Promise<void> {
  await db.deleteFrom("idempotency_keys").where("expires_at", "<=", nowMs).execute();
}
