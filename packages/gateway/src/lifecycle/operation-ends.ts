/**
 * Ends operations: the record's last change, the end of the operation and its audit entry in one compare-and-set
 * transaction. If the record changed since it was read, it is read again, as long as the operation is still the
 * sandbox's.
 */
import type { Clock } from "@cloche/base";
import type { SandboxState } from "@cloche/protocol";
import type { Database } from "../database/database.ts";
import { isSameTurn, type OperationGroup, type OperationRecord } from "../database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import type { SandboxChange } from "../database/sandboxes.ts";
import type { GatewayMetrics } from "../gateway-metrics.ts";
import { gatewayLimits } from "../limits.ts";
import type { AuditLog } from "./audit-log.ts";
import type { Records } from "./records.ts";

export interface OperationEndsDependencies {
  database: Database;
  records: Records;
  audit: AuditLog;
  metrics: Pick<GatewayMetrics, "operations">;
  clock: Clock;
}

export interface OperationEnd {
  /** The state that the record must be in. */
  from: SandboxState;
  result: string;
  patch: (record: SandboxRecord) => SandboxPatch;
  /** The record as read earlier: tried first, to save a read. */
  known?: SandboxRecord | undefined;
}

export class OperationEnds {
  readonly #needs: OperationEndsDependencies;

  constructor(needs: OperationEndsDependencies) {
    this.#needs = needs;
  }

  /** Returns the record as written; undefined: the operation was ended or replaced before. */
  async end(
    operation: OperationRecord,
    { from, result, patch, known }: OperationEnd,
  ): Promise<SandboxRecord | undefined> {
    const { audit, records } = this.#needs;
    let ended: SandboxRecord | undefined;
    const write = async (record: SandboxRecord): Promise<boolean> => {
      const fields = patch(record);
      const entry = audit.doneEntry(operation, record.teamId, result, fields.errorMessage);
      ended = await records.change(record, fields, { end: operation, audit: entry });
      if (ended !== undefined) this.#measure(operation, result);
      return ended !== undefined;
    };
    await this.#whileOwn(operation, from, write, known);
    return ended;
  }

  /** Ends a group's operations with their records in one transaction, without sandboxes deleted meanwhile. */
  async publish(
    all: readonly OperationRecord[],
    group: OperationGroup,
    from: SandboxState,
    patch: OperationEnd["patch"],
  ): Promise<void> {
    const { audit, database, records } = this.#needs;
    for (let pending = all, attempt = 0; attempt < gatewayLimits.changeAttempts; attempt += 1) {
      const changes: SandboxChange[] = [];
      for (const operation of pending) {
        const read = await records.get(operation.sandboxId);
        if (read?.state !== from) continue;
        const fields = patch(read);
        const entry = audit.doneEntry(operation, read.teamId, "ok", fields.errorMessage);
        changes.push({ read, patch: fields, write: { end: operation, audit: entry } });
      }
      if (changes.length === 0 || (await records.changeAll(changes)) !== undefined) {
        for (const operation of pending) this.#measure(operation, "ok");
        return;
      }
      pending = await database.operations.ofGroup(group);
    }
    throw new Error(`the sandboxes of group ${group.id} changed under every attempt to publish them`);
  }

  /** Ends the operation and removes the record. */
  async gone(operation: OperationRecord, from: SandboxState, known?: SandboxRecord): Promise<void> {
    const { audit, records } = this.#needs;
    const write = async (record: SandboxRecord): Promise<boolean> => {
      const result = operation.kind === "delete" ? "ok" : "failed";
      const entry = audit.doneEntry(operation, record.teamId, result);
      const freesKey = operation.kind !== "delete";
      const isRemoved = await records.remove(record, { end: operation, audit: entry, freesKey });
      if (isRemoved) this.#measure(operation, result);
      return isRemoved;
    };
    await this.#whileOwn(operation, from, write, known);
  }

  #measure({ kind, createdAtMs }: OperationRecord, result: string): void {
    const tookMs = Math.max(0, this.#needs.clock.nowMs() - createdAtMs);
    this.#needs.metrics.operations.observe({ operation: kind, result }, tookMs / 1_000);
  }

  async #whileOwn(
    { id, attempt, sandboxId, kind }: OperationRecord,
    from: SandboxState,
    write: (record: SandboxRecord) => Promise<boolean>,
    known?: SandboxRecord,
  ): Promise<void> {
    const { database, records } = this.#needs;
    for (let turn = 0; turn < gatewayLimits.changeAttempts; turn += 1) {
      const isKnown = turn === 0 && known?.state === from;
      const record = isKnown ? known : await records.get(sandboxId);
      if (record === undefined || record.state !== from) return;
      if (await write(record)) return;
      if (!isSameTurn(await database.operations.ofSandbox(sandboxId), { id, attempt })) return;
    }
    throw new Error(`sandbox ${sandboxId} changed under every attempt to end ${kind}`);
  }
}
