import type { Kysely } from "kysely";
import type { AuditRow, Schema } from "./schema.ts";

/** One line of the audit log: who did what to what, when, in which request, with which result. */
export interface AuditEntry {
  /** Sorts by time. */
  id: string;
  atMs: number;
  teamId: string;
  /** An API key id, or `system:…`. */
  actor: string;
  /** For example `sandbox.suspend` (asked) or `sandbox.suspend.done` (ended). */
  action: string;
  /** Sandbox, key or checkpoint id. */
  subject: string;
  requestId: string;
  /** `ok`, or an error code. */
  result: string;
  detail: string;
}

export interface AuditQuery {
  teamId: string;
  subject?: string;
  /** Only entries older than this id. */
  beforeId?: string;
  limit: number;
}

export class Audit {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  async insert(entry: AuditEntry): Promise<void> {
    await insertAudit(this.#db, entry);
  }

  /** Newest first. */
  async list(query: AuditQuery): Promise<AuditEntry[]> {
    let select = this.#db
      .selectFrom("audit")
      .selectAll()
      .where("team_id", "=", query.teamId)
      .orderBy("id", "desc")
      .limit(query.limit);
    if (query.subject !== undefined) select = select.where("subject", "=", query.subject);
    if (query.beforeId !== undefined) select = select.where("id", "<", query.beforeId);
    return (await select.execute()).map(entryFromRow);
  }

  /** Drops entries older than `beforeMs` and, of the rest, all but the newest `keep` of each team. Returns how many. */
  async prune(beforeMs: number, keep: number): Promise<number> {
    const byAge = await this.#db.deleteFrom("audit").where("at", "<", beforeMs).executeTakeFirst();
    const beyond = await this.#db
      .selectFrom("audit")
      .select("team_id")
      .groupBy("team_id")
      .having(({ fn }) => fn.countAll(), ">", keep)
      .execute();
    let gone = Number(byAge.numDeletedRows);
    for (const { team_id } of beyond) gone += await this.#pruneTeam(team_id, keep);
    return gone;
  }

  async #pruneTeam(teamId: string, keep: number): Promise<number> {
    const newestGone = await this.#db
      .selectFrom("audit")
      .select("id")
      .where("team_id", "=", teamId)
      .orderBy("id", "desc")
      .offset(keep)
      .limit(1)
      .executeTakeFirst();
    if (newestGone === undefined) return 0;
    const { numDeletedRows } = await this.#db
      .deleteFrom("audit")
      .where("team_id", "=", teamId)
      .where("id", "<=", newestGone.id)
      .executeTakeFirst();
    return Number(numDeletedRows);
  }
}

/** Most characters of an entry's fields, which contain text that callers send. */
const textMax = { subject: 200, detail: 1_000, other: 200 };

function clip(text: string, most: number): string {
  return text.length <= most ? text : `${text.slice(0, most - 1).toWellFormed()}…`;
}

export async function insertAudit(db: Kysely<Schema>, entry: AuditEntry): Promise<void> {
  await db
    .insertInto("audit")
    .values({
      id: entry.id,
      at: entry.atMs,
      team_id: entry.teamId,
      actor: clip(entry.actor, textMax.other),
      action: clip(entry.action, textMax.other),
      subject: clip(entry.subject, textMax.subject),
      request_id: clip(entry.requestId, textMax.other),
      result: clip(entry.result, textMax.other),
      detail: clip(entry.detail, textMax.detail),
    })
    // Another gateway has written the same event.
    .onConflict((conflict) => conflict.column("id").doNothing())
    .execute();
}

const entryFromRow = (row: AuditRow): AuditEntry => ({
  id: row.id,
  atMs: row.at,
  teamId: row.team_id,
  actor: row.actor,
  action: row.action,
  subject: row.subject,
  requestId: row.request_id,
  result: row.result,
  detail: row.detail,
});
