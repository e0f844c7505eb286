import type { Kysely } from "kysely";
import type { PortLinkRow, Schema } from "./schema.ts";

export interface PortLink {
  sandboxId: string;
  teamId: string;
  port: number;
  expiresAtMs: number;
}

/** One-time links to a sandbox's ports, found by the SHA-256 of their token. */
export class PortLinks {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** Also drops expired links, so that the table stays small. */
  async insert(tokenHash: string, link: PortLink, nowMs: number): Promise<void> {
    await this.#db.transaction().execute(async (tx) => {
      await tx.deleteFrom("port_links").where("expires_at", "<=", nowMs).execute();
      await tx
        .insertInto("port_links")
        .values({
          token_hash: tokenHash,
          sandbox_id: link.sandboxId,
          team_id: link.teamId,
          port: link.port,
          expires_at: link.expiresAtMs,
        })
        .execute();
    });
  }

  /** Leaves the link in place: it may be shown where it does not belong. */
  async find(tokenHash: string): Promise<PortLink | undefined> {
    const row = await this.#db
      .selectFrom("port_links")
      .where("token_hash", "=", tokenHash)
      .selectAll()
      .executeTakeFirst();
    return row && linkFromRow(row);
  }

  /** Removes and returns the link: of two callers at once only one gets it. */
  async take(tokenHash: string): Promise<PortLink | undefined> {
    const row = await this.#db
      .deleteFrom("port_links")
      .where("token_hash", "=", tokenHash)
      .returningAll()
      .executeTakeFirst();
    return row && linkFromRow(row);
  }
}

const linkFromRow = (row: PortLinkRow): PortLink => ({
  sandboxId: row.sandbox_id,
  teamId: row.team_id,
  port: row.port,
  expiresAtMs: row.expires_at,
});
