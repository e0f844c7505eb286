/**
 * The audit log: who did what, when, in which request, with which result. Entries are kept for 90 days, and of each
 * team only the newest (gatewayLimits.auditKeepOfTeam).
 */
import { createHash } from "node:crypto";
import { type Clock, type Log, regularly } from "@cloche/base";
import { ClocheError, type RandomBytes } from "@cloche/protocol";
import type { AuditEvent } from "@cloche/protocol/host";
import type { AuditEntry } from "../database/audit.ts";
import type { Database } from "../database/database.ts";
import type { OperationRecord } from "../database/operations.ts";
import { gatewayLimits } from "../limits.ts";

/** An id that all gateways compute alike for the same event. Sorts by time. */
function idOfEvent(entry: AuditEntry): string {
  const { atMs, teamId, actor, action, subject, requestId, result, detail } = entry;
  const text = JSON.stringify([atMs, teamId, actor, action, subject, requestId, result, detail]);
  const digest = createHash("sha256").update(text).digest("hex").slice(0, 22);
  return `aud-${atMs.toString(36).padStart(9, "0")}-${digest}`;
}

/** On whose behalf something is done. */
export interface Caller {
  teamId: string;
  /** An API key id, or `system:…`. */
  actor: string;
  requestId: string;
}

export class AuditLog {
  readonly #audit: Database["audit"];
  readonly #clock: Clock;
  readonly #randomBytes: RandomBytes;
  readonly #log: Log;
  readonly #stop = new AbortController();
  #pruning: Promise<void> | undefined;

  constructor(audit: Database["audit"], clock: Clock, randomBytes: RandomBytes, log: Log) {
    this.#audit = audit;
    this.#clock = clock;
    this.#randomBytes = randomBytes;
    this.#log = log;
  }

  entry(caller: Caller, action: string, subject: string, result = "ok", detail = ""): AuditEntry {
    const atMs = this.#clock.nowMs();
    return { ...caller, id: this.#newId(atMs), atMs, action, subject, result, detail };
  }

  /**
   * The entry for the end of an operation. `message`: the sandbox's new message, used when the operation did not fail.
   */
  doneEntry(operation: OperationRecord, teamId: string, result: string, message = ""): AuditEntry {
    const caller = { teamId, actor: operation.actor, requestId: operation.requestId };
    return this.entry(
      caller,
      `sandbox.${operation.kind}.done`,
      operation.sandboxId,
      result,
      operation.failure || message,
    );
  }

  /** Writes an entry for a denied request. Never throws: the caller gets the denial in any case. */
  async denied(caller: Caller, action: string, subject: string, thrown: unknown): Promise<void> {
    const error = ClocheError.from(thrown);
    await this.write(this.entry(caller, action, subject, error.code, error.message));
  }

  /** Writes an event that a host reported. `once`: one entry, even if several gateways write it. Never throws. */
  async reported(event: AuditEvent, once = false): Promise<void> {
    const { teamId, actor, action, subject, requestId, result, detail } = event;
    const atMs = Number(event.atUnixMs);
    const entry = this.entry({ teamId, actor, requestId }, action, subject, result, detail);
    const id = once ? idOfEvent({ ...entry, atMs }) : entry.id;
    await this.write({ ...entry, id, atMs });
  }

  /** Never throws: the audited action has happened already, and a failed write is only logged. */
  async write(entry: AuditEntry): Promise<void> {
    try {
      await this.#audit.insert(entry);
    } catch (cause) {
      this.#log.error({ err: cause, request_id: entry.requestId }, "audit entry not written");
    }
  }

  /** Begins to drop old entries, every hour. */
  start(): void {
    this.#pruning = this.#pruneRegularly();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#pruning;
  }

  async #pruneRegularly(): Promise<void> {
    const { signal } = this.#stop;
    const failed = (err: unknown) => this.#log.warn({ err }, "old audit entries could not be dropped");
    const everyMs = gatewayLimits.auditPruneMs;
    await regularly({ everyMs, first: "now", clock: this.#clock, signal, failed }, async () => {
      const before = this.#clock.nowMs() - gatewayLimits.auditKeepMs;
      await this.#audit.prune(before, gatewayLimits.auditKeepOfTeam);
    });
  }

  /** Sorts by time; the random end keeps entries of one millisecond apart. */
  #newId(atMs: number): string {
    const random = Buffer.from(this.#randomBytes(8)).toString("hex");
    this.#sequence = (this.#sequence + 1) % 1_000_000;
    return `aud-${atMs.toString(36).padStart(9, "0")}-${String(this.#sequence).padStart(6, "0")}${random}`;
  }
  #sequence = 0;
}
