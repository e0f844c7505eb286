import type { Kysely } from "kysely";
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
}

/** What an operation needs to know beyond the sandbox's record, and what it noted on its way. */
export interface OperationInput {
  /** Suspend: the memory is not kept. */
  diskOnly?: true;
  /** Create and fork: the sandboxes that are made together with this one, which is one of them. */
  group?: OperationGroup;
  /** Of a group that turned back while its caller waited: no record of it stays. */
  isRefused?: boolean;
  /** Suspend and resume that turned back: what the machine then was. */
  fate?: "running" | "suspended" | "lost";
}

export interface OperationGroup {
  /** 20 hexadecimal digits. */
  id: string;
  sandboxIds: readonly string[];
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
    { input, begun, failure }: Pick<OperationRecord, "input" | "begun" | "failure">,
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
      .execute();
  }

  /** Writes the progress down; false when the operation is no longer the sandbox's. */
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
      .executeTakeFirst();
    return result.numUpdatedRows === 1n;
  }
}

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
});
