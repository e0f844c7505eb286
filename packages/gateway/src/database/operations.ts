import { type Kysely, sql } from "kysely";
import { gatewayLimits } from "../limits.ts";
import { fromDatabaseNow, isPostgres } from "./database-clock.ts";
import type { OperationRow, Schema } from "./schema.ts";

export const operationKinds = ["create", "fork", "suspend", "resume", "delete"] as const;
export type OperationKind = (typeof operationKinds)[number];

const makingKinds: OperationKind[] = ["create", "fork"];

/** One running operation of a sandbox: what the service continues after a crash. */
export interface OperationRecord {
  id: string;
  sandboxId: string;
  kind: OperationKind;
  direction: "forward" | "back";
  /** Names of the saga's steps begun, oldest first; written down when it turns back. */
  begun: string[];
  input: OperationInput;
  /** Public message of the failure that turned it back. */
  failure: string;
  /** Who asked: an API key id, or `system:…`. */
  actor: string;
  requestId: string;
  createdAtMs: number;
  updatedAtMs: number;
  /** The gateway that runs it; empty: the database has one gateway only, and its operations need no lease. */
  owner: string;
  /** Grows with each owner: what a former one still writes is refused. */
  attempt: number;
  /** The generation that the record has with it: grows from one operation of a sandbox to the next (fence.ts of protocol). */
  number: number;
}

/** Whose turn at which operation a write is. */
export type OperationTurn = Pick<OperationRecord, "id" | "attempt">;

export const isSameTurn = (a: OperationTurn | undefined, b: OperationTurn): boolean =>
  a?.id === b.id && a.attempt === b.attempt;

/** What an operation needs to know beyond the sandbox's record, and what it noted on its way. */
export interface OperationInput {
  /** Suspend: the memory is not kept. */
  diskOnly?: true;
  /** Suspend: it is to go on on another host. */
  isForMove?: true;
  /** Create and fork: the sandboxes that are made together with this one, which is one of them. */
  group?: OperationGroup;
  /** Of a group that turned back while its caller waited: no record of it stays. */
  isRefused?: boolean;
  /** Resume: the host that the record named before, where a copy may be. */
  movedFrom?: string;
  /** Resume: not what was suspended, but this checkpoint; it ran when its host was lost. */
  checkpoint?: { id: string; createdAt: string };
  /** Suspend and resume that turned back: what the machine then was. */
  fate?: "running" | "suspended" | "lost";
}

export interface OperationGroup {
  /** 20 hexadecimal digits. */
  id: string;
  sandboxIds: readonly string[];
  /** Of forks: where their source is. */
  hostId?: string;
}

export class Operations {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** Every operation that has not ended, oldest first. */
  async all(): Promise<OperationRecord[]> {
    const rows = await this.#db.selectFrom("operations").selectAll().orderBy("created_at").execute();
    return rows.map(operationFromRow);
  }

  /** Those of the host's sandboxes. */
  async ofHost(hostId: string): Promise<OperationRecord[]> {
    const rows = await this.#db
      .selectFrom("operations")
      .selectAll("operations")
      .innerJoin("sandboxes", "sandboxes.id", "operations.sandbox_id")
      .where("sandboxes.host_id", "=", hostId)
      .execute();
    return rows.map(operationFromRow);
  }

  async ofSandbox(sandboxId: string): Promise<OperationRecord | undefined> {
    const row = await this.#db
      .selectFrom("operations")
      .selectAll()
      .where("sandbox_id", "=", sandboxId)
      .executeTakeFirst();
    return row && operationFromRow(row);
  }

  /** Those that still make sandboxes of the group. */
  async ofGroup({ sandboxIds }: OperationGroup): Promise<OperationRecord[]> {
    const rows = await this.#db
      .selectFrom("operations")
      .selectAll()
      .where("sandbox_id", "in", sandboxIds)
      .where("kind", "in", makingKinds)
      .execute();
    return rows.map(operationFromRow);
  }

  /** Turns all that still make sandboxes of the group back, with the failure and what is known of it. `begun`: their steps. */
  async turnBack(
    { sandboxIds }: OperationGroup,
    { owner, input, begun, failure }: Pick<OperationRecord, "owner" | "input" | "begun" | "failure">,
    nowMs: number,
  ): Promise<void> {
    await this.#db
      .updateTable("operations")
      .set({
        direction: "back",
        begun: JSON.stringify(begun),
        input: JSON.stringify(input),
        failure,
        updated_at: nowMs,
      })
      .where("sandbox_id", "in", sandboxIds)
      .where("kind", "in", makingKinds)
      .where("direction", "=", "forward")
      .where("owner", "=", owner)
      .execute();
  }

  /** Writes the progress down; false when the operation is no longer the sandbox's, or another's turn at it has begun. */
  async save(operation: OperationRecord, nowMs: number): Promise<boolean> {
    const { direction, begun, input, failure } = operation;
    const result = await this.#db
      .updateTable("operations")
      .set({
        direction,
        begun: JSON.stringify(begun),
        input: JSON.stringify(input),
        failure,
        updated_at: nowMs,
      })
      .where("sandbox_id", "=", operation.sandboxId)
      .where("id", "=", operation.id)
      .where("attempt", "=", operation.attempt)
      .executeTakeFirst();
    return result.numUpdatedRows === 1n;
  }

  /** Renews the leases of these operations, and answers the ids of those that are still the owner's. */
  async renew(owner: string, ids: readonly string[]): Promise<string[]> {
    const rows = await this.#db
      .updateTable("operations")
      .set({ lease_until: leaseFromNow(this.#db) })
      .where("owner", "=", owner)
      .where("id", "in", ids)
      .returning("id")
      .execute();
    return rows.map(({ id }) => id);
  }

  /**
   * Makes all operations whose lease is over the owner's, but `running`, and answers them with their next attempt. All at once,
   * one gateway after another: those of a group begin in one transaction with one lease, and so get one owner again.
   */
  async takeOver(owner: string, running: readonly string[]): Promise<OperationRecord[]> {
    const rows = await this.#db.transaction().execute(async (tx) => {
      if (isPostgres(tx)) await sql`select pg_advisory_xact_lock(${takeOverLock})`.execute(tx);
      let update = tx
        .updateTable("operations")
        .set((e) => ({ owner, lease_until: leaseFromNow(tx), attempt: e("attempt", "+", 1) }))
        .where("lease_until", "<=", fromDatabaseNow(tx));
      if (running.length > 0) update = update.where("id", "not in", running);
      return await update.returningAll().execute();
    });
    return rows.map(operationFromRow);
  }

  /** Ends the owner's leases: others may take over at once. */
  async release(owner: string): Promise<void> {
    await this.#db.updateTable("operations").set({ lease_until: 0 }).where("owner", "=", owner).execute();
  }
}

/** Any number, the same in every release. */
const takeOverLock = 7_016_352;

const leaseFromNow = (db: Kysely<Schema>) => fromDatabaseNow(db, gatewayLimits.operationLeaseMs);

export async function insertOperation(db: Kysely<Schema>, operation: OperationRecord): Promise<void> {
  await db
    .insertInto("operations")
    .values({
      sandbox_id: operation.sandboxId,
      id: operation.id,
      kind: operation.kind,
      direction: operation.direction,
      begun: JSON.stringify(operation.begun),
      input: JSON.stringify(operation.input),
      failure: operation.failure,
      actor: operation.actor,
      request_id: operation.requestId,
      created_at: operation.createdAtMs,
      updated_at: operation.updatedAtMs,
      owner: operation.owner,
      lease_until: operation.owner === "" ? 0 : leaseFromNow(db),
      attempt: operation.attempt,
      number: operation.number,
    })
    .execute();
}

const operationFromRow = (row: OperationRow): OperationRecord => ({
  id: row.id,
  sandboxId: row.sandbox_id,
  kind: row.kind as OperationKind,
  direction: row.direction as OperationRecord["direction"],
  begun: JSON.parse(row.begun) as string[],
  input: JSON.parse(row.input) as OperationInput,
  failure: row.failure,
  actor: row.actor,
  requestId: row.request_id,
  createdAtMs: row.created_at,
  updatedAtMs: row.updated_at,
  owner: row.owner,
  attempt: row.attempt,
  number: row.number,
});
