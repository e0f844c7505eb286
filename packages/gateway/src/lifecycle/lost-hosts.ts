/**
 * Handles the sandboxes of lost hosts. Every gateway looks for them in the database again and again, so that the crash
 * of one gateway loses none. Each write takes effect only while the host is still lost.
 *
 *   RUNNING, SUSPENDING    on_host_loss error                     ERROR that says so
 *                          restart_from_checkpoint                RESUMING: a new machine elsewhere, of its newest visible checkpoint
 *   SUSPENDED, durable     nothing: it is resumed elsewhere when it is asked for
 *   SUSPENDED, not durable stays, and says that it waits for its host
 *   CREATING, RESUMING,    their operations go on (sagas.ts): on another host, or without a host
 *   DELETING
 *
 * When the host is back, its copies of moved sandboxes are destroyed, and all others go on (host-comparison.ts,
 * reconciler.ts).
 */
import { type Clock, type Log, Turns } from "@cloche/base";
import type { RandomBytes } from "@cloche/protocol";
import type { HostCheckpoint } from "@cloche/protocol/host";
import type { Database } from "../database/database.ts";
import type { OperationInput } from "../database/operations.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Fleet } from "../hosts/fleet.ts";
import { gatewayLimits } from "../limits.ts";
import type { TeamCheckpoints } from "../storage/team-checkpoints.ts";
import type { AuditLog, Caller } from "./audit-log.ts";
import { decideRemedy, follow } from "./decide.ts";
import { lostWithHost, lostWithoutCheckpoint, waitsForHost } from "./host-loss-messages.ts";
import { newOperation } from "./lifecycle.ts";
import type { OperationRunner } from "./operation-runner.ts";
import type { Records } from "./records.ts";

export interface LostHostsDependencies {
  database: Database;
  records: Records;
  runner: OperationRunner;
  fleet: Fleet;
  checkpoints: TeamCheckpoints;
  audit: AuditLog;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
  owner: string;
}

export class LostHosts {
  readonly #needs: LostHostsDependencies;
  readonly #stop = new AbortController();
  readonly #turns = new Turns(gatewayLimits.reconcileConcurrency);
  #wake = new AbortController();
  #running: Promise<void> | undefined;

  constructor(needs: LostHostsDependencies) {
    this.#needs = needs;
  }

  start(): void {
    this.#running = this.#run();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
  }

  /** Looks at once, and has waiting operations tried again. */
  hostLost(hostId: string): void {
    this.#wake.abort();
    this.#needs.runner.hostLost(hostId);
  }

  async #run(): Promise<void> {
    const { clock, fleet, log } = this.#needs;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      this.#wake = new AbortController();
      const wake = AbortSignal.any([signal, this.#wake.signal]);
      const lost = [...fleet.rows().values()].filter(({ isLost }) => isLost);
      for (const { id } of lost) {
        await this.#rescue(id).catch((error: unknown) => {
          if (!signal.aborted) log.warn({ err: error, host_id: id }, "the sandboxes of a lost host wait");
        });
      }
      await clock.sleep(gatewayLimits.lostHostPollMs, wake).catch(() => undefined);
    }
  }

  async #rescue(hostId: string): Promise<void> {
    const { database, log } = this.#needs;
    for (;;) {
      const found = await database.sandboxes.toRescue(hostId, gatewayLimits.lostHostBatch);
      const done = await Promise.all(
        found.map((record) =>
          this.#inTurn(record).catch((error: unknown) => {
            const fields = { err: error, host_id: hostId, sandbox_id: record.id };
            if (!this.#stop.signal.aborted) log.warn(fields, "a sandbox of a lost host waits");
            return false;
          }),
        ),
      );
      if (this.#stop.signal.aborted) return;
      if (found.length < gatewayLimits.lostHostBatch || !done.includes(true)) return;
    }
  }

  async #inTurn(record: SandboxRecord): Promise<boolean> {
    const release = await this.#turns.enter();
    try {
      return !this.#stop.signal.aborted && (await this.#rescueOne(record));
    } finally {
      release();
    }
  }

  /** False: another gateway was first, or the host is back. */
  async #rescueOne(record: SandboxRecord): Promise<boolean> {
    const restarts = record.onHostLoss === "restart_from_checkpoint";
    switch (record.state) {
      case "SANDBOX_STATE_RUNNING":
      case "SANDBOX_STATE_SUSPENDING":
        return restarts ? await this.#restart(record) : await this.#fail(record, lostWithHost);
      case "SANDBOX_STATE_SUSPENDED":
        // The sandbox ran until the service suspended it to move it.
        if (record.isMoving && restarts && (await this.#newestVisible(record)) !== undefined)
          return await this.#restart(record);
        return await this.#wait(record);
      default:
        return await this.#redo(record);
    }
  }

  async #fail(record: SandboxRecord, errorMessage: string): Promise<boolean> {
    const { audit, database, records } = this.#needs;
    const end = await database.operations.ofSandbox(record.id);
    const entry = audit.entry(callerOf(record), "sandbox.fail", record.id, "unavailable", errorMessage);
    const failed = await records.change(
      record,
      { state: follow(record.state, "crashed"), errorMessage, isHostLost: true },
      { leavesLostHost: true, ranUntilSeen: true, audit: entry, ...(end && { end }) },
    );
    return failed !== undefined;
  }

  async #restart(record: SandboxRecord): Promise<boolean> {
    const found = await this.#newestVisible(record);
    if (found === undefined) return await this.#fail(record, lostWithoutCheckpoint);
    const { id, createdAt } = found;
    return await this.#begin(record, { checkpoint: { id, createdAt } });
  }

  async #begin(record: SandboxRecord, input: OperationInput): Promise<boolean> {
    const { audit, records, runner } = this.#needs;
    const caller = callerOf(record);
    const operation = { ...newOperation(this.#needs, caller, record, "resume"), input };
    const entry = audit.entry(caller, "sandbox.resume", record.id, "ok", lostWithHost);
    const state = follow(record.state, ...wayToResuming(record));
    return await runner.begin(operation, async () => {
      const begun = await records.change(
        record,
        { state, isMoving: true, errorMessage: "" },
        { begin: operation, leavesLostHost: true, ranUntilSeen: true, audit: entry },
      );
      return begun !== undefined;
    });
  }

  /** In a cluster every checkpoint that the database lists is visible. */
  async #newestVisible({ id: sandboxId, teamId }: SandboxRecord): Promise<HostCheckpoint | undefined> {
    const call = { signal: this.#stop.signal, requestId: "" };
    const query = { teamId, sandboxId, limit: 1, pageToken: "" };
    return (await this.#needs.checkpoints.checkpoints(query, call)).checkpoints[0];
  }

  async #wait(record: SandboxRecord): Promise<boolean> {
    const waiting = { errorMessage: waitsForHost, isHostLost: true };
    return (await this.#needs.records.change(record, waiting, { leavesLostHost: true })) !== undefined;
  }

  /** The record is in a state that only an operation can leave, but has no operation: begins it again. */
  async #redo(record: SandboxRecord): Promise<boolean> {
    const { records, runner } = this.#needs;
    const isLiveFork = record.sourceSandboxId !== "" && record.sourceCheckpointId === "";
    const remedy = decideRemedy(record.state, isLiveFork, "absent");
    if (remedy.kind !== "redo") return false;
    const operation = newOperation(this.#needs, callerOf(record), record, remedy.operation);
    return await runner.begin(operation, async () => {
      return (await records.change(record, {}, { begin: operation, leavesLostHost: true })) !== undefined;
    });
  }
}

const callerOf = ({ teamId }: SandboxRecord): Caller => ({
  teamId,
  actor: "system:host_loss",
  requestId: "",
});

const wayToResuming = ({ state }: SandboxRecord) => {
  if (state === "SANDBOX_STATE_RUNNING") return ["suspend", "suspended", "resume"] as const;
  return state === "SANDBOX_STATE_SUSPENDING" ? (["suspended", "resume"] as const) : (["resume"] as const);
};
