/**
 * Compares a record with what really runs: when the sandbox's machine changed, when its operation ended, and when a look at its whole
 * host found a difference (host-comparison.ts). Goes on with operations that a crash left, brings back what should run, tells the
 * truth about what is lost, destroys machines that no record knows, and copies on hosts that the record does not name. Idle machines
 * are suspended. Acts only on hosts that this gateway watches.
 *
 * Owns nothing that must survive: every check reads record, operation and machine afresh.
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
  usage: UsageWatch;
  audit: AuditLog;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
  /** Of the operations begun here (operation-leases.ts). */
  owner: string;
}

export class Reconciler {
  readonly #needs: ReconcilerDependencies;
  readonly #queue = new SerialQueue();
  readonly #stop = new AbortController();
  /** Bounds how many sandboxes are compared at once. */
  readonly #turns = new Turns(gatewayLimits.reconcileConcurrency);
  /** Machines that were there before a database that is new: it cannot know whether they are wanted. */
  readonly #spared = new Set<string>();
  /** What machines that run said last of how they came to. In memory: after a restart it is taken once more. */
  readonly #said = new Map<string, string>();

  constructor(needs: ReconcilerDependencies) {
    this.#needs = needs;
  }

  start(): void {
    const { fleet, records, runner } = this.#needs;
    runner.onEnded = (ended) => void this.#ended(ended);
    // The operations of a cluster end at any gateway.
    if (fleet.isCluster) records.listen((_id, record) => this.#recordChanged(record));
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#queue.drain();
  }

  /** These machines are destroyed by no comparison. */
  spare(sandboxIds: readonly string[]): void {
    for (const id of sandboxIds) this.#spared.add(id);
  }

  changed(hostId: string, sandboxId: string): void {
    if (!this.#needs.runner.isBusy(sandboxId)) this.#later(hostId, sandboxId);
  }

  idle(hostId: string, sandboxId: string): void {
    if (!this.#needs.watches.isMine(hostId)) return;
    void this.#suspendIdle(sandboxId).catch((error: unknown) => {
      this.#needs.log.warn({ err: error, sandbox_id: sandboxId }, "an idle sandbox could not be suspended");
    });
  }

  /** Resolves when nothing is being compared any more; for tests. */
  async settle(): Promise<void> {
    await this.#queue.drain();
  }

  async #ended({ sandboxId, movedFrom = "", record: written }: EndedOperation): Promise<void> {
    const { fleet, records } = this.#needs;
    // Whoever watches that host: a copy of a sandbox that is elsewhere now is nobody's.
    if (fleet.ids().includes(movedFrom)) void this.check(movedFrom, sandboxId);
    if (written !== undefined && isAsItShould(written, fleet.machine(sandboxId, written.hostId))) return;
    const [only = ""] = fleet.ids();
    const record =
      written ?? (fleet.isCluster ? await records.get(sandboxId).catch(() => undefined) : undefined);
    if (record !== undefined || !fleet.isCluster) this.#later(record?.hostId ?? only, sandboxId);
  }

  #recordChanged(record: SandboxRecord | undefined): void {
    const { fleet, watches } = this.#needs;
    if (record === undefined || !settledStates.has(record.state) || !watches.isMine(record.hostId)) return;
    if (isDue(record, fleet.machine(record.id, record.hostId))) this.changed(record.hostId, record.id);
  }

  #later(hostId: string, sandboxId: string): void {
    if (!this.#stop.signal.aborted && this.#needs.watches.isMine(hostId)) void this.check(hostId, sandboxId);
  }

  /** Compares the host's machine of this id. Never throws: what could not be done is done at the next look. */
  async check(hostId: string, sandboxId: string): Promise<void> {
    await this.#queue.run(sandboxId, async () => {
      const release = await this.#turns.enter();
      try {
        if (!this.#stop.signal.aborted) await this.#check(hostId, sandboxId);
      } catch (error) {
        if (!this.#stop.signal.aborted) {
          this.#needs.log.warn(
            { err: error, sandbox_id: sandboxId },
            "a sandbox could not be compared with its machine",
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
        // Where there are several gateways, its lease says who goes on with it.
        if (owner === "") runner.goOn(operation);
        return;
      }
    }
    const machine = await fleet.calls(hostId).find(sandboxId, this.#call());
    // After the machine, so that a record that is missing now was never there or is gone for good.
    const record = await records.get(sandboxId);
    // Another gateway acted meanwhile: the machine may be of before, the record of after.
    if (record?.generation !== before?.generation) return this.#later(hostId, sandboxId);
    if (record === undefined || isElsewhere(record)) {
      if (record === undefined) this.#said.delete(sandboxId);
      return await this.#destroyUnknown(hostId, sandboxId, machine);
    }
    if (machine === undefined) fleet.machinesOf(hostId).forget(sandboxId);
    if (!runner.isBusy(sandboxId)) await this.#remedy(record, machine);
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
        return await this.#takeWords(caller, record, machine);
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
   * A machine that ended and was started again by its host says what it lost. That may be over before its end was looked at:
   * then nothing is to be done but to tell. Once, so that what was said of the sandbox since stands.
   */
  async #takeWords(caller: Caller, record: SandboxRecord, machine: Machine | undefined): Promise<void> {
    const words = machine?.phase === MachinePhase.RUNNING ? machine.errorMessage : "";
    if (words === "") this.#said.delete(record.id);
    if (words === "" || words === this.#said.get(record.id)) return;
    if (record.state !== "SANDBOX_STATE_RUNNING") return;
    // Told before a restart of the gateway.
    if (words === record.errorMessage) return void this.#said.set(record.id, words);
    const entry = this.#needs.audit.entry(caller, "sandbox.restart", record.id, "ok", words);
    const changed = await this.#needs.records.change(record, { errorMessage: words }, { audit: entry });
    if (changed !== undefined) this.#said.set(record.id, words);
  }

  /** Its host is back, and is compared: what was said of its loss is over. What did not come back with it stays in ERROR. */
  async #hostReturned(caller: Caller, record: SandboxRecord): Promise<void> {
    const words = record.state === "SANDBOX_STATE_SUSPENDED" ? { errorMessage: "" } : {};
    const entry = this.#needs.audit.entry(caller, "sandbox.host_returned", record.id);
    await this.#needs.records.change(record, { isHostLost: false, ...words }, { audit: entry });
  }

  /** The machine is looked at while the record is SUSPENDED and does not change: its image is of this suspension. */
  async #takeImage(record: SandboxRecord, machine: Machine | undefined): Promise<void> {
    const image = newImageOf(record, machine);
    if (image !== undefined) await this.#needs.records.change(record, { image });
  }

  async #destroyUnknown(hostId: string, sandboxId: string, machine: Machine | undefined): Promise<void> {
    const { fleet, log } = this.#needs;
    const fields = { sandbox_id: sandboxId, host_id: hostId };
    if (machine === undefined) return fleet.machinesOf(hostId).forget(sandboxId);
    if (this.#spared.has(sandboxId)) {
      // Better a leftover than the loss of every disk.
      log.error(fields, "the database is newer than this machine; it is left alone");
      return;
    }
    log.warn(fields, "no sandbox has this machine here; it is destroyed");
    await fleet.calls(hostId).destroy(sandboxId, this.#call());
    fleet.machinesOf(hostId).forget(sandboxId);
  }

  async #suspendIdle(sandboxId: string): Promise<void> {
    const { lifecycle, records } = this.#needs;
    const record = await records.get(sandboxId);
    if (record?.state !== "SANDBOX_STATE_RUNNING" || record.idleSuspendSeconds === 0) return;
    await lifecycle.suspend({ teamId: record.teamId, actor: "system:idle", requestId: "" }, record);
  }

  #operation(caller: Caller, record: SandboxRecord, kind: OperationKind) {
    return newOperation(this.#needs, caller, record, kind);
  }

  #call() {
    return { signal: this.#stop.signal, requestId: "" };
  }
}

/** Those that a sandbox rests in. */
const settledStates: ReadonlySet<SandboxState> = new Set<SandboxState>([
  "SANDBOX_STATE_RUNNING",
  "SANDBOX_STATE_SUSPENDED",
]);

/** What the machine's storage says that the record does not know yet. */
function newImageOf(record: SandboxRecord, machine: Machine | undefined): string | undefined {
  if (record.state !== "SANDBOX_STATE_SUSPENDED" || machine?.phase !== MachinePhase.SUSPENDED)
    return undefined;
  const { storedImage } = machine;
  if (storedImage === undefined || storedImage.key === imageOf(record)?.key) return undefined;
  return JSON.stringify(toJson(StoredImageSchema, storedImage));
}

/** Whether a closer look is called for. */
export const isDue = (record: SandboxRecord, machine: Machine | undefined): boolean =>
  record.isHostLost ||
  remedyFor(record, machine?.phase ?? "absent").kind !== "none" ||
  newImageOf(record, machine) !== undefined;

/** Of one whose operation has just ended: what its host told meanwhile leaves nothing to be done. */
const isAsItShould = (record: SandboxRecord, machine: Machine | undefined): boolean =>
  settledStates.has(record.state) && machine?.errorMessage === "" && !isDue(record, machine);

function remedyFor(record: SandboxRecord, sight: MachineSight): Remedy {
  if (record.isHostLost && record.state === "SANDBOX_STATE_ERROR") return decideReturn(sight);
  const isLiveFork = record.sourceSandboxId !== "" && record.sourceCheckpointId === "";
  return decideRemedy(record.state, isLiveFork, sight);
}
