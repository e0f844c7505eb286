/**
 * All machines of this host. Owns their records, in memory and on disk, and tells watchers of changes. Operations (operations/)
 * change a record only through `change` and `move` (phases.ts), and only in the machine's turn (operation-queue.ts): one
 * operation of a machine at a time.
 */
import { create } from "@bufbuild/protobuf";
import { channelKeyOf, type Clock } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { type Machine, MachineEvent_Kind, MachinePhase, MachineSchema } from "@cloche/protocol/host";
import type { MachineFiles } from "../drivers/driver.ts";
import type { Drivers } from "../drivers/drivers.ts";
import { Doze } from "./doze.ts";
import { MachineEvents } from "./machine-events.ts";
import { filesOf, type MachineRecord, MachineRecordStore, type MachineSpecRecord } from "./machine-record.ts";
import { type MachinePhaseName, nextPhase, type PhaseTrigger } from "./phases.ts";

export interface MachinesParts {
  /** Directory of the reflink pool. */
  poolDir: string;
  /** Directory of this instance on a tmpfs: empty after a reboot. */
  runDir: string;
  drivers: Drivers;
  clock: Clock;
}

export class Machines {
  readonly store: MachineRecordStore;
  readonly events: MachineEvents;
  readonly doze: Doze;
  /** Called with the former record when an agent is no longer reached at its address. */
  onAgentGone: (record: MachineRecord) => void = () => undefined;
  readonly #poolDir: string;
  readonly #clock: Clock;
  readonly #records = new Map<string, MachineRecord>();
  /** Machines under a restore in place: requests for them answer 503. */
  readonly #busy = new Set<string>();
  /** Abort calls to agents of machines that are cut off: to be destroyed, or hanging when the host stops. */
  readonly #cuts = new Map<string, AbortController>();

  constructor({ poolDir, runDir, drivers, clock }: MachinesParts) {
    this.#poolDir = poolDir;
    this.#clock = clock;
    this.store = new MachineRecordStore(poolDir, runDir);
    this.events = new MachineEvents(() => this.all().map((record) => this.message(record)));
    this.doze = new Doze({
      freeze: async (id, frozen) => {
        const record = this.#records.get(id);
        if (record) await drivers.of(record).freezer?.freeze(this.files(record), frozen);
      },
    });
  }

  all(): MachineRecord[] {
    return [...this.#records.values()];
  }

  find(id: string): MachineRecord | undefined {
    return this.#records.get(id);
  }

  get(id: string): MachineRecord {
    const record = this.#records.get(id);
    if (!record) throw new ClocheError("not_found", `there is no machine ${id} on this host`);
    return record;
  }

  /** Answers the record if it is in one of `phases`; otherwise throws failed_precondition, which names its phase. */
  require(id: string, ...phases: MachinePhaseName[]): MachineRecord {
    const record = this.get(id);
    if (phases.includes(record.phase)) return record;
    throw new ClocheError(
      "failed_precondition",
      `machine ${id} is ${record.phase}, not ${phases.join(" or ")}`,
    );
  }

  files(record: MachineRecord): MachineFiles {
    return filesOf(this.#poolDir, record);
  }

  /** Aborted once the machine is cut off: then its agent may not be called any more. */
  cutOf(id: string): AbortSignal {
    const cut = this.#cuts.get(id) ?? new AbortController();
    this.#cuts.set(id, cut);
    return cut.signal;
  }

  /** Makes current and later calls to the machine's agent fail with `why`. */
  cut(id: string, why: string): void {
    this.cutOf(id);
    this.#cuts.get(id)?.abort(new Error(why));
  }

  /** Adds a loaded record, at start. */
  adopt(record: MachineRecord): void {
    this.#records.set(record.id, record);
  }

  async add(spec: MachineSpecRecord): Promise<MachineRecord> {
    const record: MachineRecord = {
      ...spec,
      version: 1,
      phase: "starting",
      epoch: 1,
      errorMessage: "",
      disk: "disk-1.ext4",
      disks: 1,
      controlSecret: "",
      agentHost: "",
      agentPort: 0,
    };
    await this.store.makeDirectory(record.id);
    await this.store.save(record, { durable: false });
    this.#records.set(record.id, record);
    this.#emit(record);
    return record;
  }

  /**
   * Changes a record: on disk first, then in memory. A change of phase or address begins a new epoch. Watchers are told of it, and
   * of a changed error message or stored image.
   * `durable`: safe from a power cut on return.
   */
  change(
    id: string,
    fields: Partial<Omit<MachineRecord, "phase">>,
    options: { durable?: boolean } = {},
  ): Promise<MachineRecord> {
    return this.#change(this.get(id), fields, options);
  }

  /** `change`, with the phase that the trigger leads to. Throws if the trigger is not allowed in the present phase. */
  async move(
    id: string,
    trigger: PhaseTrigger,
    fields: Partial<Omit<MachineRecord, "phase">> = {},
    options: { durable?: boolean } = {},
  ): Promise<MachineRecord> {
    const record = this.get(id);
    return this.#change(record, { ...fields, phase: nextPhase(record.phase, trigger) }, options);
  }

  async #change(
    record: MachineRecord,
    fields: Partial<MachineRecord>,
    options: { durable?: boolean },
  ): Promise<MachineRecord> {
    const { id } = record;
    const news =
      (fields.phase !== undefined && fields.phase !== record.phase) ||
      (fields.agentHost !== undefined && fields.agentHost !== record.agentHost) ||
      (fields.agentPort !== undefined && fields.agentPort !== record.agentPort);
    const next: MachineRecord = { ...record, ...fields, epoch: record.epoch + (news ? 1 : 0) };
    if (beginsToRun(record.phase, next.phase)) next.runningSinceMs = this.#clock.nowMs();
    // Kept while resuming: a resume that fails leaves the suspended image as it was.
    if (next.phase === "running" || next.phase === "stopped" || next.phase === "starting") delete next.stored;
    await this.store.save(next, { durable: options.durable ?? false });
    this.#records.set(id, next);
    if (record.agentHost !== "" && !isReached(next, record)) this.onAgentGone(record);
    // A suspension under way still calls the agent, so its doze is not forgotten.
    if (next.phase !== "running" && next.phase !== "suspending") this.doze.forget(id);
    if (news || next.errorMessage !== record.errorMessage || next.stored !== record.stored) this.#emit(next);
    return next;
  }

  /** Removes an optional field and changes `fields` in the same write. Watchers are not told. */
  async dropField(
    id: string,
    field: "snapshot" | "restore" | "nextControlSecret",
    fields: Pick<Partial<MachineRecord>, "controlSecret"> = {},
  ): Promise<void> {
    const { [field]: _, ...rest } = this.get(id);
    const record = { ...rest, ...fields } as MachineRecord;
    await this.store.save(record, { durable: false });
    this.#records.set(id, record);
  }

  /** Removes the machine's directory and record. Repeatable. */
  async forget(id: string): Promise<void> {
    await this.store.remove(id);
    const record = this.#records.get(id);
    this.#records.delete(id);
    this.doze.forget(id);
    this.#busy.delete(id);
    this.#cuts.delete(id);
    if (record) {
      this.onAgentGone(record);
      const gone = create(MachineSchema, { ...this.message(record), phase: MachinePhase.DESTROYED });
      this.events.emit(MachineEvent_Kind.CHANGED, gone);
    }
  }

  setBusy(id: string, busy: boolean): void {
    if (busy) this.#busy.add(id);
    else this.#busy.delete(id);
    const record = this.#records.get(id);
    if (record) this.#emit(record);
  }

  reportIdle(id: string): void {
    const record = this.#records.get(id);
    if (record) this.events.emit(MachineEvent_Kind.IDLE, this.message(record));
  }

  #emit(record: MachineRecord): void {
    this.events.emit(MachineEvent_Kind.CHANGED, this.message(record));
  }

  message(record: MachineRecord): Machine {
    return create(MachineSchema, {
      sandboxId: record.id,
      teamId: record.teamId,
      phase: phaseNumbers[record.phase],
      runtime: record.runtime,
      agentHost: record.agentHost,
      agentPort: record.agentPort,
      errorMessage: record.errorMessage,
      epoch: BigInt(record.epoch),
      cpus: record.cpus,
      memoryMb: record.memoryMb,
      diskMb: record.diskMb,
      busy: this.#busy.has(record.id),
      runningSinceUnixMs: BigInt(record.runningSinceMs ?? 0),
      ...(record.phase === "suspended" && record.stored !== undefined && { storedImage: record.stored }),
      revision: record.egress?.revision ?? 0,
      // Without a secret there is no agent to reach yet.
      channelKey: record.controlSecret === "" ? new Uint8Array() : channelKeyOf(record.controlSecret),
    });
  }
}

/** Whether the agent of the former record is still reached there. */
const isReached = ({ phase, agentHost, agentPort }: MachineRecord, former: MachineRecord): boolean =>
  agentHost === former.agentHost &&
  agentPort === former.agentPort &&
  (phase === "running" || phase === "suspending" || phase === "starting" || phase === "resuming");

const phaseNumbers: Record<MachinePhaseName, MachinePhase> = {
  starting: MachinePhase.STARTING,
  running: MachinePhase.RUNNING,
  suspending: MachinePhase.SUSPENDING,
  suspended: MachinePhase.SUSPENDED,
  resuming: MachinePhase.RESUMING,
  stopped: MachinePhase.STOPPED,
  failed: MachinePhase.FAILED,
  // For watchers a machine being destroyed is stopped; DESTROYED follows once it is gone.
  destroying: MachinePhase.STOPPED,
};

/** A suspend that failed or was cut off did not stop the machine: it did not begin to run anew. */
const beginsToRun = (from: MachinePhaseName, to: MachinePhaseName): boolean =>
  to === "running" && from !== "running" && from !== "suspending";
