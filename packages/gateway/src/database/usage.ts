/**
 * When sandboxes ran: an interval begins when a sandbox becomes RUNNING and ends when it leaves RUNNING. Both are
 * written in the transaction that changes the state, so no crash can come between. Intervals outlive their sandbox.
 *
 *   RUNNING ──▶ open (seen_at moves on while its machine is seen to run) ──any other state──▶ closed
 *                 └── its machine was found restarted or gone: closed at seen_at, the last known time
 */
import { type Kysely, sql } from "kysely";
import type { SandboxRecord } from "./sandbox-record.ts";
import type { Schema } from "./schema.ts";

export interface UsageQuery {
  teamId: string;
  /** Only this sandbox. */
  sandboxId?: string;
  /** Unix milliseconds; intervals are cut to this range. Open intervals count up to `toMs`. */
  fromMs: number;
  toMs: number;
}

/** How long one sandbox ran within the queried time. */
export interface SandboxUsage {
  sandboxId: string;
  name: string;
  createdBy: string;
  computeMs: number;
  /** Weighted by the sandbox's CPUs and by its memory in MiB. */
  cpuMs: number;
  memoryMbMs: number;
  /** Milliseconds within the time queried. */
  firstMs: number;
  lastMs: number;
}

export interface OpenInterval {
  sandboxId: string;
  startedAtMs: number;
}

const idsPerStatement = 500;

export class Usage {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** The sandboxes after `afterSandboxId`, by id, at most `limit`. */
  async list(query: UsageQuery, page: { afterSandboxId: string; limit: number }): Promise<SandboxUsage[]> {
    const rows = await this.#within(query)
      .select((e) => [
        "sandbox_id",
        e.fn.max("sandbox_name").as("sandbox_name"),
        e.fn.max("created_by").as("created_by"),
      ])
      .where("sandbox_id", ">", page.afterSandboxId)
      .groupBy("sandbox_id")
      .orderBy("sandbox_id")
      .limit(page.limit)
      .execute();
    return rows.map((row) => ({
      sandboxId: row.sandbox_id,
      name: row.sandbox_name,
      createdBy: row.created_by,
      computeMs: Number(row.compute),
      cpuMs: Number(row.cpu),
      memoryMbMs: Number(row.memory),
      firstMs: Number(row.first),
      lastMs: Number(row.last),
    }));
  }

  /** The compute time of all sandboxes of the query together. */
  async totalMs(query: UsageQuery): Promise<number> {
    const row = await this.#within(query).executeTakeFirst();
    return Number(row?.compute ?? 0);
  }

  /** Whether the team has any interval of this sandbox, at any time. */
  async hasAny(teamId: string, sandboxId: string): Promise<boolean> {
    const row = await this.#db
      .selectFrom("usage_intervals")
      .select("id")
      .where("team_id", "=", teamId)
      .where("sandbox_id", "=", sandboxId)
      .limit(1)
      .executeTakeFirst();
    return row !== undefined;
  }

  /** The open intervals of these sandboxes. */
  async open(sandboxIds: readonly string[]): Promise<OpenInterval[]> {
    const found: OpenInterval[] = [];
    for (let start = 0; start < sandboxIds.length; start += idsPerStatement) {
      const rows = await this.#db
        .selectFrom("usage_intervals")
        .select(["sandbox_id", "started_at"])
        .where("sandbox_id", "in", sandboxIds.slice(start, start + idsPerStatement))
        .where("ended_at", "is", null)
        .execute();
      for (const row of rows) found.push({ sandboxId: row.sandbox_id, startedAtMs: row.started_at });
    }
    return found;
  }

  /** Notes that the machines of these sandboxes run at this time. */
  async seen(sandboxIds: readonly string[], nowMs: number): Promise<void> {
    for (let start = 0; start < sandboxIds.length; start += idsPerStatement) {
      await this.#db
        .updateTable("usage_intervals")
        .set({ seen_at: nowMs })
        .where("sandbox_id", "in", sandboxIds.slice(start, start + idsPerStatement))
        .where("ended_at", "is", null)
        .where("seen_at", "<", nowMs)
        .execute();
    }
  }

  /** Splits the open interval of a machine that restarted: it ends when last seen; a new one begins at `sinceMs`. */
  async startedAnew(sandboxId: string, sinceMs: number): Promise<void> {
    const known = await this.#db
      .selectFrom("usage_intervals")
      .selectAll()
      .where("sandbox_id", "=", sandboxId)
      .where("ended_at", "is", null)
      .executeTakeFirst();
    if (known === undefined || known.started_at >= sinceMs) return;
    await this.#db.transaction().execute(async (tx) => {
      const ended = await tx
        .updateTable("usage_intervals")
        .set({ ended_at: Math.min(known.seen_at, sinceMs) })
        .where("id", "=", known.id)
        .where("ended_at", "is", null)
        .executeTakeFirst();
      // The sandbox left RUNNING meanwhile.
      if (ended.numUpdatedRows !== 1n) return;
      const next = { ...known, id: `${known.id}:${sinceMs}`, started_at: sinceMs, seen_at: sinceMs };
      await tx.insertInto("usage_intervals").values(next).execute();
    });
  }

  /** Deletes intervals that ended before `beforeMs`. */
  async prune(beforeMs: number): Promise<void> {
    await this.#db.deleteFrom("usage_intervals").where("ended_at", "<", beforeMs).execute();
  }

  #within({ teamId, sandboxId, fromMs, toMs }: UsageQuery) {
    const from = sql<number>`cast(${fromMs} as bigint)`;
    const to = sql<number>`cast(${toMs} as bigint)`;
    const first = sql<number>`case when started_at < ${from} then ${from} else started_at end`;
    const last = sql<number>`case when ended_at is null or ended_at > ${to} then ${to} else ended_at end`;
    let select = this.#db
      .selectFrom("usage_intervals")
      .select([
        sql<number>`sum((${last}) - (${first}))`.as("compute"),
        sql<number>`sum(((${last}) - (${first})) * cpus)`.as("cpu"),
        sql<number>`sum(((${last}) - (${first})) * memory_mb)`.as("memory"),
        sql<number>`min(${first})`.as("first"),
        sql<number>`max(${last})`.as("last"),
      ])
      .where("team_id", "=", teamId)
      .where("started_at", "<", toMs)
      .where((e) => e.or([e("ended_at", "is", null), e("ended_at", ">", fromMs)]));
    if (sandboxId !== undefined) select = select.where("sandbox_id", "=", sandboxId);
    return select;
  }
}

/** Call it within the transaction that makes the sandbox RUNNING. */
export async function openInterval(db: Kysely<Schema>, record: SandboxRecord): Promise<void> {
  const atMs = record.updatedAtMs;
  await db
    .insertInto("usage_intervals")
    .values({
      id: `${record.id}:${record.generation}`,
      sandbox_id: record.id,
      team_id: record.teamId,
      cpus: record.cpus,
      memory_mb: record.memoryMb,
      sandbox_name: record.name,
      created_by: record.createdBy,
      started_at: atMs,
      seen_at: atMs,
      ended_at: null,
    })
    .execute();
}

/** Call it within the transaction that names the sandbox anew. */
export async function renameIntervals(db: Kysely<Schema>, { id, name }: SandboxRecord): Promise<void> {
  await db.updateTable("usage_intervals").set({ sandbox_name: name }).where("sandbox_id", "=", id).execute();
}

/** Call it within the transaction that ends RUNNING. `at`: when the interval ends. */
export async function closeInterval(
  db: Kysely<Schema>,
  sandboxId: string,
  at: { ms: number } | "last seen",
): Promise<void> {
  const endedAt =
    at === "last seen"
      ? sql<number>`seen_at`
      : sql<number>`case when started_at > ${at.ms} then started_at else cast(${at.ms} as bigint) end`;
  await db
    .updateTable("usage_intervals")
    .set({ ended_at: endedAt })
    .where("sandbox_id", "=", sandboxId)
    .where("ended_at", "is", null)
    .execute();
}
