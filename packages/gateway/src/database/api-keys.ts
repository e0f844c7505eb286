import type { Kysely } from "kysely";
import { type AuditEntry, insertAudit } from "./audit.ts";
import type { ApiKeyRow, Schema } from "./schema.ts";

export interface ApiKeyRecord {
  id: string;
  teamId: string;
  name: string;
  /** First characters of the secret, to recognise it. */
  prefix: string;
  createdAtMs: number;
  expiresAtMs: number | null;
  revokedAtMs: number | null;
  lastUsedAtMs: number | null;
}

/** API keys, found by the SHA-256 of their secret: timing tells about the hash of a guess, not about the secret. */
export class ApiKeys {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** False, and nothing is inserted: the team has `most` keys that are valid at the time of the new one. */
  async insert(key: ApiKeyRecord, secretHash: string, audit: AuditEntry, most?: number): Promise<boolean> {
    return await this.#db.transaction().execute(async (tx) => {
      if (most !== undefined && (await validKeys(tx, key)) >= most) return false;
      await tx
        .insertInto("api_keys")
        .values({
          id: key.id,
          team_id: key.teamId,
          name: key.name,
          prefix: key.prefix,
          secret_hash: secretHash,
          created_at: key.createdAtMs,
          expires_at: key.expiresAtMs,
          revoked_at: key.revokedAtMs,
          last_used_at: key.lastUsedAtMs,
        })
        .execute();
      await insertAudit(tx, audit);
      return true;
    });
  }

  /** Also finds revoked and expired keys, so that the caller can say why a key is refused. */
  async findByHash(secretHash: string): Promise<ApiKeyRecord | undefined> {
    const row = await this.#db
      .selectFrom("api_keys")
      .selectAll()
      .where("secret_hash", "=", secretHash)
      .executeTakeFirst();
    return row && apiKeyFromRow(row);
  }

  /** The team's keys that are not revoked, newest first, at most `limit`, after `after`. */
  async list(
    teamId: string,
    { limit, after }: { limit: number; after?: { createdAtMs: number; id: string } },
  ): Promise<ApiKeyRecord[]> {
    let select = this.#db
      .selectFrom("api_keys")
      .selectAll()
      .where("team_id", "=", teamId)
      .where("revoked_at", "is", null)
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .limit(limit);
    if (after !== undefined) {
      const { createdAtMs, id } = after;
      select = select.where((e) =>
        e.or([
          e("created_at", "<", createdAtMs),
          e.and([e("created_at", "=", createdAtMs), e("id", "<", id)]),
        ]),
      );
    }
    return (await select.execute()).map(apiKeyFromRow);
  }

  /** Repeatable; false when the team has no such key. */
  async revoke(teamId: string, id: string, nowMs: number, audit: AuditEntry): Promise<boolean> {
    return await this.#db.transaction().execute(async (tx) => {
      const row = await tx
        .selectFrom("api_keys")
        .select("revoked_at")
        .where("id", "=", id)
        .where("team_id", "=", teamId)
        .executeTakeFirst();
      if (row === undefined) return false;
      if (row.revoked_at !== null) return true;
      await tx.updateTable("api_keys").set({ revoked_at: nowMs }).where("id", "=", id).execute();
      await insertAudit(tx, audit);
      return true;
    });
  }

  async touch(id: string, nowMs: number): Promise<void> {
    await this.#db.updateTable("api_keys").set({ last_used_at: nowMs }).where("id", "=", id).execute();
  }
}

async function validKeys(
  tx: Kysely<Schema>,
  { teamId, createdAtMs }: Pick<ApiKeyRecord, "teamId" | "createdAtMs">,
): Promise<number> {
  const { count } = await tx
    .selectFrom("api_keys")
    .select((e) => e.fn.countAll().as("count"))
    .where("team_id", "=", teamId)
    .where("revoked_at", "is", null)
    .where((e) => e.or([e("expires_at", "is", null), e("expires_at", ">", createdAtMs)]))
    .executeTakeFirstOrThrow();
  return Number(count);
}

const apiKeyFromRow = (row: ApiKeyRow): ApiKeyRecord => ({
  id: row.id,
  teamId: row.team_id,
  name: row.name,
  prefix: row.prefix,
  createdAtMs: row.created_at,
  expiresAtMs: row.expires_at,
  revokedAtMs: row.revoked_at,
  lastUsedAtMs: row.last_used_at,
});
