import { type Kysely, sql } from "kysely";
import { gatewayLimits } from "../limits.ts";
import { fromDatabaseNow, isPostgres } from "./database-clock.ts";
import type { OperationRow, Schema } from "./schema.ts";

export const operationKinds = ["create", "fork", "suspend", "resume", "delete"] as const;
export type OperationKind = (typeof operationKinds)[number];

const creatingKinds: OperationKind[] = ["create", "fork"];

/** An operation of a sandbox that has not ended; the service continues it after a crash. */
export interface OperationRecord {
  id: string;
  sandboxId: string;
  kind: OperationKind;
  direction: "forward" | "back";
  input: OperationInput;
  /** Public message of the failure that turned the operation back. */
  failure: string;
  /** Who asked: an API key id, or `system:…`. */
  actor: string;
  requestId: string;
  createdAtMs: number;
  updatedAtMs: number;
  /** The gateway that runs the operation; empty: there is only one gateway, and operations need no lease. */
  owner: string;
  /** Grows with each new owner; writes of a former owner are refused. */
  attempt: number;
  /** The record's generation with this operation: grows from one operation to the next (fence.ts of protocol). */
  number: number;
}

/** The operation and the owner's attempt that a write belongs to. */
export type OperationTurn = Pick<OperationRecord, "id" | "attempt">;

export const isSameTurn = (a: OperationTurn | undefined, b: OperationTurn): boolean =>
  a?.id === b.id && a.attempt === b.attempt;

/** Parameters of an operation beyond the sandbox's record, and what its steps have found out. */
export interface OperationInput {
  /** Suspend: the memory is not kept. */
  diskOnly?: true;
  /** Suspend: the sandbox will be resumed on another host. */
  isForMove?: true;
  /** Create and fork: all sandboxes that are made together, this one included. */
  group?: OperationGroup;
  /** The group turned back while its caller waited: none of its records is kept. */
  isRefused?: boolean;
  /** Resume: the former host of the record, where a copy may be. */
  movedFrom?: string;
  /** Resume: restart from this checkpoint, because the sandbox ran when its host was lost. */
  checkpoint?: { id: string; createdAt: string };
}

export interface OperationGroup {
  /** 20 hexadecimal digits. */
  id: string;
  sandboxIds: readonly string[];
  /** For live forks: the host of their source. */
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

  /** Operations of the host's sandboxes. */
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

  /** Create and fork operations of the group that have not ended. */
  async ofGroup({ sandboxIds }: OperationGroup): Promise<OperationRecord[]> {
    const rows = await this.#db
      .selectFrom("operations")
      .selectAll()
      .where("sandbox_id", "in", sandboxIds)
      .where("kind", "in", creatingKinds)
      .execute();
    return rows.map(operationFromRow);
  }

  /**
   * Turns back all create and fork operations of the group that run forward, with this failure.
   */
  async turnBack(
    { sandboxIds }: OperationGroup,
    { owner, input, failure }: Pick<OperationRecord, "owner" | "input" | "failure">,
    nowMs: number,
  ): Promise<void> {
    await this.#db
      .updateTable("operations")
      .set({
        direction: "back",
        begun: begunOf("back"),
        input: JSON.stringify(input),
        failure,
        updated_at: nowMs,
      })
      .where("sandbox_id", "in", sandboxIds)
      .where("kind", "in", creatingKinds)
      .where("direction", "=", "forward")
      .where("owner", "=", owner)
      .execute();
  }

  /** Writes the progress; false when the operation was replaced or taken over. */
  async save(operation: OperationRecord, nowMs: number): Promise<boolean> {
    const { direction, input, failure } = operation;
    const result = await this.#db
      .updateTable("operations")
      .set({
        direction,
        begun: begunOf(direction),
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

  /** Renews the leases of these operations; returns the ids of those that the owner still has. */
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
   * Takes over all operations whose lease is over, but `running`, and returns them with their next attempt. One gateway
   * at a time takes all of them: operations of a group began in one transaction with one lease, so the group gets one
   * owner again.
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

  /** Ends the owner's leases: other gateways may take over at once. */
  async release(owner: string): Promise<void> {
    await this.#db.updateTable("operations").set({ lease_until: 0 }).where("owner", "=", owner).execute();
  }
}

/** Id of the advisory lock: any number, but the same in every release. */
const takeOverLock = 7_016_352;

/** Read only by gateways that are not upgraded yet: the steps that they would undo. */
const begunOf = (direction: OperationRecord["direction"]): string =>
  direction === "back" ? '["record","machine"]' : "[]";

const leaseFromNow = (db: Kysely<Schema>) => fromDatabaseNow(db, gatewayLimits.operationLeaseMs);

export async function insertOperation(db: Kysely<Schema>, operation: OperationRecord): Promise<void> {
  await db
    .insertInto("operations")
    .values({
      sandbox_id: operation.sandboxId,
      id: operation.id,
      kind: operation.kind,
      direction: operation.direction,
      begun: begunOf(operation.direction),
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
