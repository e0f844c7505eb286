/**
 * Compares records with what really runs: of every sandbox when the host's listing is complete, of one when its machine
 * changed or its operation ended, of all again every minute. Goes on with operations that a crash left, brings back what
 * should run, tells the truth about what is lost, destroys machines that no record knows. Idle machines are suspended.
 *
 * Owns nothing that must survive: every check reads record, operation and machine afresh.
 */
import { type Clock, type Log, SerialQueue, Turns } from "@cloche/base";
import type { RandomBytes } from "@cloche/protocol";
import { toJson } from "@bufbuild/protobuf";
import { type Machine, MachinePhase, StoredImageSchema } from "@cloche/protocol/host";
import type { Database } from "../database/database.ts";
import type { OperationKind } from "../database/operations.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { gatewayLimits } from "../limits.ts";
import type { AuditLog, Caller } from "./audit-log.ts";
import { decideRemedy, type MachineSight, type Remedy } from "./decide.ts";
import type { HostCalls } from "./host-calls.ts";
import { type Lifecycle, newOperation } from "./lifecycle.ts";
import type { MachineListener, MachineView } from "./machine-view.ts";
import type { OperationRunner } from "./operation-runner.ts";
import type { Records } from "./records.ts";
import { countedAnew } from "./sagas.ts";
import type { UsageWatch } from "./usage-watch.ts";

export interface ReconcilerDependencies {
  database: Database;
  records: Records;
  runner: OperationRunner;
  lifecycle: Lifecycle;
  host: HostCalls;
  machines: MachineView;
  usage: UsageWatch;
  audit: AuditLog;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
  /** Of the operations begun here (operation-leases.ts). */
  owner: string;
  /** The host needs the public keys again whenever it comes back. */
  pushKeys: () => Promise<void>;
}

export class Reconciler implements Omit<MachineListener, "dozeChanged" | "ready" | "audit"> {
  readonly #needs: ReconcilerDependencies;
  readonly #queue = new SerialQueue();
  readonly #stop = new AbortController();
  /** Bounds how many sandboxes are compared at once. */
  readonly #turns = new Turns(gatewayLimits.reconcileConcurrency);
  #regularly: Promise<void> | undefined;
  #firstPass: Promise<void> | undefined;
  /** Machines that were there before a database that is new: it cannot know whether they are wanted. */
  #spared: ReadonlySet<string> | undefined;
  /** What machines that run said last of how they came to. In memory: after a restart it is taken once more. */
  readonly #said = new Map<string, string>();

  constructor(needs: ReconcilerDependencies) {
    this.#needs = needs;
  }

  start(): void {
    this.#needs.runner.onEnded = (sandboxId) => this.#later(sandboxId);
    this.#regularly = this.#checkRegularly();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await Promise.all([this.#regularly, this.#firstPass, this.#queue.drain()]);
  }

  synced(): void {
    const { database, machines } = this.#needs;
    this.#spared ??= new Set(database.isNew ? [...machines.all()].map((one) => one.sandboxId) : []);
    this.#firstPass = this.#checkAll().catch((error: unknown) => {
      this.#needs.log.warn({ err: error }, "the comparison with the host's machines could not be completed");
    });
  }

  changed(sandboxId: string): void {
    if (!this.#needs.runner.isBusy(sandboxId)) this.#later(sandboxId);
  }

  idle(sandboxId: string): void {
    void this.#suspendIdle(sandboxId).catch((error: unknown) => {
      this.#needs.log.warn({ err: error, sandbox_id: sandboxId }, "an idle sandbox could not be suspended");
    });
  }

  /** Resolves when nothing is being compared any more; for tests. */
  async settle(): Promise<void> {
    await this.#firstPass;
    await this.#queue.drain();
  }

  async #checkRegularly(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await this.#needs.clock.sleep(gatewayLimits.reconcileEveryMs, signal).catch(() => undefined);
      if (!signal.aborted && this.#needs.machines.isSynced) {
        await this.#compareAll().catch((error: unknown) => {
          this.#needs.log.warn({ err: error }, "the regular comparison with the host failed");
        });
      }
    }
  }

  async #checkAll(): Promise<void> {
    await this.#needs.pushKeys();
    await this.#compareAll();
    await this.#pushIdleLimits();
  }

  async #compareAll(): Promise<void> {
    const { database, host } = this.#needs;
    // Machines first: a sandbox made in between is then unknown to the list of machines, not to the records.
    const machines = await host.list(this.#call());
    await this.#needs.usage.compare(machines);
    const records = new Map((await database.sandboxes.all()).map((one) => [one.id, one]));
    const underWay = new Set((await database.operations.all()).map((one) => one.sandboxId));
    const phases = new Map(machines.map((one) => [one.sandboxId, one.phase]));
    const differing = [...new Set([...phases.keys(), ...records.keys()])].filter((id) => {
      const record = records.get(id);
      if (record === undefined || underWay.has(id)) return true;
      return remedyFor(record, phases.get(id) ?? "absent").kind !== "none";
    });
    await Promise.all(differing.map((id) => this.#enqueue(id)));
  }

  /** The host may have missed a change of the limit when it or we went down. */
  async #pushIdleLimits(): Promise<void> {
    const { database, host, machines } = this.#needs;
    const limited = (await database.sandboxes.all()).filter(
      (record) => record.idleSuspendSeconds > 0 && machines.get(record.id)?.phase === MachinePhase.RUNNING,
    );
    // Side by side: a machine in the middle of something takes its limit when its turn comes.
    const pushes = limited.map(({ id, idleSuspendSeconds }) =>
      host.update(id, { idleSuspendSeconds }, this.#call()).catch((error: unknown) => {
        this.#needs.log.warn({ err: error, sandbox_id: id }, "the idle limit could not be set");
      }),
    );
    await Promise.all(pushes);
  }

  #later(sandboxId: string): void {
    if (!this.#stop.signal.aborted) void this.#enqueue(sandboxId);
  }

  async #enqueue(sandboxId: string): Promise<void> {
    await this.#queue.run(sandboxId, async () => {
      const release = await this.#turns.enter();
      try {
        if (!this.#stop.signal.aborted) await this.#check(sandboxId);
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

  async #check(sandboxId: string): Promise<void> {
    const { database, host, machines, records, runner, owner } = this.#needs;
    if (runner.isBusy(sandboxId)) return;
    const before = await records.get(sandboxId);
    const operation = await database.operations.ofSandbox(sandboxId);
    if (operation !== undefined) {
      // Where there are several gateways, its lease says who goes on with it.
      if (owner === "") runner.goOn(operation);
      return;
    }
    const machine = await host.find(sandboxId, this.#call());
    // After the machine, so that a record that is missing now was never there or is gone for good.
    const record = await records.get(sandboxId);
    // Another gateway acted meanwhile: the machine may be of before, the record of after.
    if (record?.generation !== before?.generation) return this.#later(sandboxId);
    if (record === undefined) {
      this.#said.delete(sandboxId);
      return await this.#destroyUnknown(sandboxId, machine);
    }
    if (machine === undefined) machines.forget(sandboxId);
    if (!runner.isBusy(sandboxId)) await this.#remedy(record, machine);
  }

  async #remedy(record: SandboxRecord, machine: Machine | undefined): Promise<void> {
    const { records, runner, audit, usage } = this.#needs;
    const remedy = remedyFor(record, machine?.phase ?? "absent");
    const caller: Caller = { teamId: record.teamId, actor: "system:reconciler", requestId: "" };
    await usage.noted(record.id);
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

  /** The machine is looked at while the record is SUSPENDED and does not change: its image is of this suspension. */
  async #takeImage(record: SandboxRecord, machine: Machine | undefined): Promise<void> {
    if (record.state !== "SANDBOX_STATE_SUSPENDED" || machine?.phase !== MachinePhase.SUSPENDED) return;
    if (machine.storedImage === undefined) return;
    const image = JSON.stringify(toJson(StoredImageSchema, machine.storedImage));
    if (image !== record.image) await this.#needs.records.change(record, { image });
  }

  async #destroyUnknown(sandboxId: string, machine: Machine | undefined): Promise<void> {
    const { host, log, machines } = this.#needs;
    if (machine === undefined) return machines.forget(sandboxId);
    if (this.#spared?.has(sandboxId)) {
      // Better a leftover than the loss of every disk.
      log.error({ sandbox_id: sandboxId }, "the database is newer than this machine; it is left alone");
      return;
    }
    log.warn({ sandbox_id: sandboxId }, "no sandbox has this machine; it is destroyed");
    await host.destroy(sandboxId, this.#call());
    machines.forget(sandboxId);
  }

  async #suspendIdle(sandboxId: string): Promise<void> {
    const { lifecycle, records } = this.#needs;
    const record = await records.get(sandboxId);
    if (record?.state !== "SANDBOX_STATE_RUNNING" || record.idleSuspendSeconds === 0) return;
    await lifecycle.suspend({ teamId: record.teamId, actor: "system:idle", requestId: "" }, record);
  }

  #operation(caller: Caller, record: SandboxRecord, kind: OperationKind) {
    return newOperation(this.#needs, caller, record.id, kind);
  }

  #call() {
    return { signal: this.#stop.signal, requestId: "" };
  }
}

function remedyFor(record: SandboxRecord, sight: MachineSight): Remedy {
  const isLiveFork = record.sourceSandboxId !== "" && record.sourceCheckpointId === "";
  return decideRemedy(record.state, isLiveFork, sight);
}
