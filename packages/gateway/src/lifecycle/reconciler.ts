/**
 * Compares one sandbox's record with its machine: after the machine changed, after an operation ended, and when the
 * comparison of a whole host found a difference (host-comparison.ts). It continues operations that a crash interrupted,
 * restarts machines that should run, sets records of lost machines to ERROR, and destroys machines of removed sandboxes and
 * copies on hosts that the record does not name (a database older than a machine: orphans.ts). It also suspends idle machines. It acts only on hosts that this
 * gateway watches, except on the former host of a move.
 *
 * Keeps no state that must survive a crash: each check reads record, operation and machine anew.
 */
import { type Clock, type Log, SerialQueue, Turns } from "@cloche/base";
import type { RandomBytes, SandboxState } from "@cloche/protocol";
import { toJson } from "@bufbuild/protobuf";
import { type Machine, MachinePhase, StoredImageSchema } from "@cloche/protocol/host";
import type { Database } from "../database/database.ts";
import type { OperationKind } from "../database/operations.ts";
import { imageOf, type SandboxRecord } from "../database/sandbox-record.ts";
import type { Fleet } from "../hosts/fleet.ts";
import type { Watches } from "../hosts/host-watches.ts";
import { gatewayLimits } from "../limits.ts";
import type { AuditLog, Caller } from "./audit-log.ts";
import { decideRemedy, decideReturn, type MachineSight, type Remedy } from "./decide.ts";
import { type Lifecycle, newOperation } from "./lifecycle.ts";
import type { EndedOperation, OperationRunner } from "./operation-runner.ts";
import { egressIn, isOlder, type Orphans } from "./orphans.ts";
import type { Records } from "./records.ts";
import { countedAnew } from "./sagas.ts";
import type { UsageWatch } from "./usage-watch.ts";

export interface ReconcilerDependencies {
  database: Database;
  records: Records;
  runner: OperationRunner;
  lifecycle: Lifecycle;
  fleet: Fleet;
  watches: Watches;
  orphans: Orphans;
  usage: UsageWatch;
  audit: AuditLog;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
  /** The owner of operations begun here (operation-leases.ts); empty where the gateway is the only one. */
  owner: string;
}

export class Reconciler {
  readonly #needs: ReconcilerDependencies;
  readonly #queue = new SerialQueue();
  readonly #stop = new AbortController();
  /** Bounds how many sandboxes are compared at once. */
  readonly #turns = new Turns(gatewayLimits.reconcileConcurrency);
  /** By sandbox, the last message of a running machine about its restart that was written into the record. */
  readonly #reported = new Map<string, string>();

  constructor(needs: ReconcilerDependencies) {
    this.#needs = needs;
  }

  start(): void {
    const { fleet, records, runner } = this.#needs;
    runner.onEnded = (ended) => void this.#ended(ended);
    // In a cluster an operation may end at another gateway.
    if (fleet.isCluster) records.listen((_id, record) => this.#recordChanged(record));
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#queue.drain();
  }

  changed(hostId: string, sandboxId: string): void {
    if (!this.#needs.runner.isBusy(sandboxId)) this.#later(hostId, sandboxId);
  }

  idle(hostId: string, sandboxId: string): void {
    if (!this.#needs.watches.isMine(hostId)) return;
    void this.#suspendIdle(hostId, sandboxId).catch((error: unknown) => {
      this.#needs.log.warn({ err: error, sandbox_id: sandboxId }, "an idle sandbox could not be suspended");
    });
  }

  /** Resolves when no comparison is running; for tests. */
  async settle(): Promise<void> {
    await this.#queue.drain();
  }

  async #ended({ sandboxId, movedFrom = "", record: written }: EndedOperation): Promise<void> {
    const { fleet, records } = this.#needs;
    // Check the former host too, even when another gateway watches it: a copy left there must go.
    if (fleet.ids().includes(movedFrom)) void this.check(movedFrom, sandboxId);
    if (written !== undefined && isAsItShould(written, fleet.machine(sandboxId, written.hostId)))
      return void this.#reported.delete(sandboxId);
    const [only = ""] = fleet.ids();
    const record =
      written ?? (fleet.isCluster ? await records.get(sandboxId).catch(() => undefined) : undefined);
    if (record !== undefined || !fleet.isCluster) this.#later(record?.hostId ?? only, sandboxId);
  }

  #recordChanged(record: SandboxRecord | undefined): void {
    const { fleet, watches } = this.#needs;
    if (record === undefined || !settledStates.has(record.state) || !watches.isMine(record.hostId)) return;
    const machine = fleet.machine(record.id, record.hostId);
    if (machine?.errorMessage === "") this.#reported.delete(record.id);
    if (isDue(record, machine)) this.changed(record.hostId, record.id);
  }

  #later(hostId: string, sandboxId: string): void {
    if (!this.#stop.signal.aborted && this.#needs.watches.isMine(hostId)) void this.check(hostId, sandboxId);
  }

  /** Compares the host's machine of this id. Never throws. A failed comparison is repeated at the next look. */
  async check(hostId: string, sandboxId: string): Promise<void> {
    await this.#queue.run(sandboxId, async () => {
      const release = await this.#turns.enter();
      try {
        if (!this.#stop.signal.aborted) await this.#check(hostId, sandboxId);
      } catch (error) {
        if (!this.#stop.signal.aborted) {
          this.#needs.log.warn(
            { err: error, sandbox_id: sandboxId },
            "comparison of a sandbox with its machine failed",
          );
        }
      } finally {
        release();
      }
    });
  }

  async #check(hostId: string, sandboxId: string): Promise<void> {
    const { database, fleet, records, runner, owner } = this.#needs;
    const isElsewhere = (record?: SandboxRecord): boolean => fleet.isCluster && record?.hostId !== hostId;
    const before = await records.get(sandboxId);
    if (!isElsewhere(before)) {
      if (runner.isBusy(sandboxId)) return;
      const operation = await database.operations.ofSandbox(sandboxId);
      if (operation !== undefined) {
        // With several gateways, the operation's lease decides which of them continues it.
        if (owner === "") runner.goOn(operation);
        return;
      }
    }
    const machine = await fleet.calls(hostId).find(sandboxId, this.#call());
    // Read the record after the machine: a record that is missing now never existed or is gone for good.
    const record = await records.get(sandboxId);
    // The record changed meanwhile: the machine may have been read before that change, the record after it.
    if (record?.generation !== before?.generation) return this.#later(hostId, sandboxId);
    if (record === undefined || isElsewhere(record)) {
      if (record === undefined) this.#reported.delete(sandboxId);
      return await this.#destroyUnknown(hostId, sandboxId, machine, record);
    }
    if (machine === undefined) fleet.machinesOf(hostId).forget(sandboxId);
    if (runner.isBusy(sandboxId)) return;
    if (machine !== undefined && isOlder(record, machine)) return await this.#catchUp(record, machine);
    await this.#remedy(record, machine);
  }

  /** The database was restored, and is older than the machine: the newer policy is kept, and later ones will be newer than it. */
  async #catchUp(record: SandboxRecord, { revision, spec }: Machine): Promise<void> {
    const { records, audit, log } = this.#needs;
    log.warn(
      { sandbox_id: record.id },
      "the database is older than this machine, whose egress policy is kept",
    );
    const caller: Caller = { teamId: record.teamId, actor: "system:reconciler", requestId: "" };
    const entry = audit.entry(caller, "sandbox.update_egress", record.id, "ok", "the database was older");
    const egress = spec === undefined ? undefined : egressIn(spec);
    const write = { generationMin: revision + 1, audit: entry };
    const changed = await records.change(record, egress === undefined ? {} : { egress }, write);
    if (changed !== undefined) this.#later(record.hostId, record.id);
  }

  async #remedy(record: SandboxRecord, machine: Machine | undefined): Promise<void> {
    const { records, runner, audit, usage } = this.#needs;
    const remedy = remedyFor(record, machine?.phase ?? "absent");
    const caller: Caller = { teamId: record.teamId, actor: "system:reconciler", requestId: "" };
    await usage.noted(record.id);
    if (record.isHostLost && remedy.kind === "none") return await this.#hostReturned(caller, record);
    switch (remedy.kind) {
      case "none":
        await this.#takeImage(record, machine);
        return await this.#takeMessage(caller, record, machine);
      case "bring_back": {
        const operation = this.#operation(caller, record, "resume");
        const entry = audit.entry(caller, "sandbox.resume", record.id, "ok", "the machine was not running");
        await runner.begin(operation, async () => {
          const changed = await records.change(
            record,
            { state: remedy.to },
            { begin: operation, audit: entry, ranUntilSeen: true },
          );
          return changed !== undefined;
        });
        return;
      }
      case "redo": {
        const operation = this.#operation(caller, record, remedy.operation);
        await runner.begin(operation, async () => {
          return (await records.change(record, {}, { begin: operation })) !== undefined;
        });
        return;
      }
      case "adopt": {
        const entry = audit.entry(caller, "sandbox.adopt", record.id);
        const firstRanAtMs = record.firstRanAtMs ?? this.#needs.clock.nowMs();
        const errorMessage = machine?.errorMessage ?? "";
        const time = countedAnew(record, this.#needs.clock.nowMs());
        await records.change(
          record,
          { ...time, state: remedy.to, errorMessage, firstRanAtMs },
          { audit: entry },
        );
        return;
      }
      case "fail": {
        const errorMessage = machine?.errorMessage || remedy.reason;
        const entry = audit.entry(caller, "sandbox.fail", record.id, "internal", errorMessage);
        await records.change(
          record,
          { state: remedy.to, errorMessage },
          { audit: entry, ranUntilSeen: true },
        );
        return;
      }
    }
  }

  /**
   * A machine that its host restarted says what it lost. The restart may be over before this gateway compared the
   * machine: then only the message is written into the record. Each message is written once, so that it does not
   * replace later messages.
   */
  async #takeMessage(caller: Caller, record: SandboxRecord, machine: Machine | undefined): Promise<void> {
    const message = machine?.phase === MachinePhase.RUNNING ? machine.errorMessage : "";
    if (message === "") this.#reported.delete(record.id);
    if (message === "" || message === this.#reported.get(record.id)) return;
    if (record.state !== "SANDBOX_STATE_RUNNING") return;
    // The message was written before this gateway started.
    if (message === record.errorMessage) return void this.#reported.set(record.id, message);
    const entry = this.#needs.audit.entry(caller, "sandbox.restart", record.id, "ok", message);
    const changed = await this.#needs.records.change(record, { errorMessage: message }, { audit: entry });
    if (changed !== undefined) this.#reported.set(record.id, message);
  }

  /** The lost host is back: clears mark and message of the loss. Without its machine a sandbox stays in ERROR. */
  async #hostReturned(caller: Caller, record: SandboxRecord): Promise<void> {
    const cleared = record.state === "SANDBOX_STATE_SUSPENDED" ? { errorMessage: "" } : {};
    const entry = this.#needs.audit.entry(caller, "sandbox.host_returned", record.id);
    await this.#needs.records.change(record, { isHostLost: false, ...cleared }, { audit: entry });
  }

  /** Notes the stored image. The record was SUSPENDED and unchanged meanwhile, so the image is of this suspension. */
  async #takeImage(record: SandboxRecord, machine: Machine | undefined): Promise<void> {
    const image = newImageOf(record, machine);
    if (image !== undefined) await this.#needs.records.change(record, { image });
  }

  async #destroyUnknown(
    hostId: string,
    sandboxId: string,
    machine: Machine | undefined,
    record: SandboxRecord | undefined,
  ): Promise<void> {
    const { fleet, log, orphans } = this.#needs;
    if (machine === undefined) {
      orphans.gone(hostId, sandboxId);
      return fleet.machinesOf(hostId).forget(sandboxId);
    }
    // To destroy machines because the database is older than they are, or is the wrong one, would lose their disks.
    if (await orphans.keeps(hostId, machine, record)) return;
    log.warn({ sandbox_id: sandboxId, host_id: hostId }, "no sandbox has this machine here; it is destroyed");
    await fleet.calls(hostId).destroy(sandboxId, this.#call());
    fleet.machinesOf(hostId).forget(sandboxId);
    orphans.gone(hostId, sandboxId);
  }

  async #suspendIdle(hostId: string, sandboxId: string): Promise<void> {
    const { lifecycle, records } = this.#needs;
    const record = await records.get(sandboxId);
    if (record?.hostId !== hostId) return;
    if (record.state !== "SANDBOX_STATE_RUNNING" || record.idleSuspendSeconds === 0) return;
    await lifecycle.suspend({ teamId: record.teamId, actor: "system:idle", requestId: "" }, record);
  }

  #operation(caller: Caller, record: SandboxRecord, kind: OperationKind) {
    return newOperation(this.#needs, caller, record, kind);
  }

  #call() {
    return { signal: this.#stop.signal, requestId: "" };
  }
}

/** States that a sandbox stays in without an operation. */
const settledStates: ReadonlySet<SandboxState> = new Set<SandboxState>([
  "SANDBOX_STATE_RUNNING",
  "SANDBOX_STATE_SUSPENDED",
]);

/** The stored image that the machine reports and the record does not have yet, as JSON. */
function newImageOf(record: SandboxRecord, machine: Machine | undefined): string | undefined {
  if (record.state !== "SANDBOX_STATE_SUSPENDED" || machine?.phase !== MachinePhase.SUSPENDED)
    return undefined;
  const { storedImage } = machine;
  if (storedImage === undefined || storedImage.key === imageOf(record)?.key) return undefined;
  return JSON.stringify(toJson(StoredImageSchema, storedImage));
}

/** True when record and machine differ, so that the sandbox must be checked. */
export const isDue = (record: SandboxRecord, machine: Machine | undefined): boolean =>
  record.isHostLost ||
  (machine !== undefined && isOlder(record, machine)) ||
  remedyFor(record, machine?.phase ?? "absent").kind !== "none" ||
  newImageOf(record, machine) !== undefined;

/** After an operation ended: true when the machine, as its host last reported it, agrees with the record. */
const isAsItShould = (record: SandboxRecord, machine: Machine | undefined): boolean =>
  settledStates.has(record.state) && machine?.errorMessage === "" && !isDue(record, machine);

function remedyFor(record: SandboxRecord, sight: MachineSight): Remedy {
  if (record.isHostLost && record.state === "SANDBOX_STATE_ERROR") return decideReturn(sight);
  const isLiveFork = record.sourceSandboxId !== "" && record.sourceCheckpointId === "";
  return decideRemedy(record.state, isLiveFork, sight);
}
