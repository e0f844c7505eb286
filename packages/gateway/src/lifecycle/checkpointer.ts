/**
 * Takes a checkpoint of each running sandbox every `checkpoint_every_seconds`.
 *
 *   due ──claimed: due again in 120 s──▶ taken ──▶ due again after checkpoint_every_seconds
 *                     └── failed, or its gateway is gone: due again in 120 s
 *
 * The due time is in the database, and a claim is a conditional write, so only one of several gateways takes the
 * checkpoint. The newest three automatic checkpoints of a sandbox are kept; checkpoints of the owner are left alone.
 */
import { type Clock, type Log, regularly, rfc3339, Turns } from "@cloche/base";
import { limits, newCheckpointId, type RandomBytes } from "@cloche/protocol";
import type { HostCheckpoint } from "@cloche/protocol/host";
import type { Database } from "../database/database.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { gatewayLimits } from "../limits.ts";
import type { Fleet } from "../hosts/fleet.ts";
import type { TeamCheckpoints } from "../storage/team-checkpoints.ts";
import type { AuditLog } from "./audit-log.ts";
import { HostError } from "../hosts/host-calls.ts";

export interface CheckpointerDependencies {
  sandboxes: Database["sandboxes"];
  fleet: Pick<Fleet, "calls">;
  checkpoints: TeamCheckpoints;
  audit: AuditLog;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
}

export class Checkpointer {
  readonly #needs: CheckpointerDependencies;
  readonly #stop = new AbortController();
  readonly #turns = new Turns(gatewayLimits.checkpointsAtOnce);
  #running: Promise<void> | undefined;

  constructor(needs: CheckpointerDependencies) {
    this.#needs = needs;
  }

  start(): void {
    this.#running = this.#run();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, log } = this.#needs;
    const { signal } = this.#stop;
    const failed = (err: unknown) => log.warn({ err }, "search for due checkpoints failed");
    const everyMs = gatewayLimits.checkpointPollMs;
    await regularly({ everyMs, first: "later", clock, signal, failed }, () => this.#takeDue());
  }

  async #takeDue(): Promise<void> {
    const { clock, sandboxes } = this.#needs;
    const due = await sandboxes.checkpointsDue(clock.nowMs(), gatewayLimits.checkpointBatch);
    await Promise.all(due.map((record) => this.#inTurn(record)));
  }

  async #inTurn(record: SandboxRecord): Promise<void> {
    const { clock, log, sandboxes } = this.#needs;
    const release = await this.#turns.enter();
    try {
      const nowMs = clock.nowMs();
      const leaseUntilMs = nowMs + gatewayLimits.checkpointRetryMs;
      if (this.#stop.signal.aborted) return;
      if (!(await sandboxes.moveCheckpoint(record.id, nowMs, leaseUntilMs))) return;
      if (!(await this.#take(record))) return;
      await sandboxes.moveCheckpoint(record.id, leaseUntilMs, nowMs + record.checkpointEverySeconds * 1_000);
      await this.#dropOld(record);
    } catch (error) {
      if (!this.#stop.signal.aborted)
        log.warn({ err: error, sandbox_id: record.id }, "automatic checkpoint failed");
    } finally {
      release();
    }
  }

  /** True: the checkpoint was taken, or was refused with `resource_exhausted` and waits until the next is due. */
  async #take({ id: sandboxId, teamId, hostId }: SandboxRecord): Promise<boolean> {
    const { audit, clock, fleet, randomBytes } = this.#needs;
    const checkpointId = newCheckpointId(randomBytes);
    const name = `automatic ${rfc3339(clock.nowMs())}`;
    try {
      await fleet.calls(hostId).checkpointMachine({ sandboxId, checkpointId, name }, this.#call());
      return true;
    } catch (error) {
      if (!(error instanceof HostError) || error.code !== "resource_exhausted") throw error;
      const caller = { teamId, actor: "system:checkpoint", requestId: "" };
      await audit.denied(caller, "checkpoint.create", sandboxId, error);
      return true;
    }
  }

  async #dropOld({ id: sandboxId, teamId }: SandboxRecord): Promise<void> {
    const known = this.#needs.checkpoints;
    const query = { teamId, sandboxId, limit: limits.unpagedList, pageToken: "" };
    const { checkpoints } = await known.checkpoints(query, this.#call());
    for (const { id } of surplus(checkpoints)) await known.deleteCheckpoint(teamId, id, this.#call());
  }

  #call() {
    return { signal: this.#stop.signal, requestId: "" };
  }
}

/** The automatic checkpoints to delete, of checkpoints newest first. The newest visible one is always kept. */
export function surplus(checkpoints: readonly HostCheckpoint[]): HostCheckpoint[] {
  const newestVisible = checkpoints.find(({ visible }) => visible);
  return checkpoints
    .filter(({ automatic }) => automatic)
    .slice(limits.automaticCheckpoints)
    .filter((one) => one !== newestVisible);
}
