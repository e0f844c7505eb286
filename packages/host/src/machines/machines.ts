// Every machine of this host: its record, its queue, what watchers hear of it, and the calls to its agent.
// Owns the records in memory and on disk. The operations (operations/) change a record only through `change`,
// and `move` (phases.ts), and only inside the machine's queue: one operation of a machine at a time.
import { createHash } from "node:crypto";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import {
  channelKeyOf,
  type Clock,
  type Histogram,
  type KeySet,
  type Log,
  logIds,
  Metrics,
  readJsonFile,
  SerialQueue,
  step,
  traced,
  writeDurably,
} from "@cloche/base";
import { type CheckpointLimits, ClocheError, type Egress } from "@cloche/protocol";
import { type Machine, MachineEvent_Kind, MachinePhase, MachineSchema } from "@cloche/protocol/host";
import type { AssignRequestJson } from "@cloche/protocol/guest";
import type { BlobStore } from "../blob/blob-store.ts";
import type { Templates } from "../disk/template.ts";
import type { MachineDriver, MachineFiles, Runtime } from "../drivers/driver.ts";
import type { EgressReport } from "../network/egress-report.ts";
import type { LinkTraffic } from "../network/traffic.ts";
import type { Native } from "../sys/native.ts";
import { Doze } from "../idle/doze.ts";
import type { HostJournal } from "../operations/journal.ts";
import { operationHistogram } from "./operation-histogram.ts";
import { GuestClient } from "../agent-calls/guest-client.ts";
import { MachineEvents } from "./machine-events.ts";
import { filesOf, type MachineRecord, MachineRecordStore, type MachineSpecRecord } from "./machine-record.ts";
import { type MachinePhaseName, nextPhase, type PhaseTrigger } from "./phases.ts";

export interface HostParts {
  /** Directory of the reflink pool. */
  poolDir: string;
  /** Of this instance, on a tmpfs: gone after a reboot. */
  runDir: string;
  /** First: the default runtime. */
  drivers: ReadonlyMap<Runtime, MachineDriver>;
  templates: Templates;
  native: Native;
  /** Where checkpoints become durable. */
  blobs: BlobStore;
  /** Where operations under way are written down; default: files below `runDir`. */
  journal?: HostJournal;
  /** Name servers that sandboxes ask. */
  dnsServers: readonly string[];
  /** Of one team. Default: `defaults.checkpointLimits`. */
  checkpointLimits?: CheckpointLimits;
  /** What machines may reach, by their address. */
  egress: EgressControl;
  clock: Clock;
  log: Log;
  /** Where the host tells of itself; default: nowhere that anybody looks. */
  metrics?: Metrics;
  /** After so long a machine in which nothing runs or is asked may doze; default 0: never. */
  dozeSeconds?: number;
  /** Logs the steps of each operation with their times. */
  traceOperations?: boolean;
  randomBytes: (length: number) => Uint8Array;
}

export interface EgressControl {
  setEgressOf(agentHost: string, egress: Egress | undefined): Promise<void>;
  reportOf(agentHost: string): Promise<EgressReport>;
  /** Of every machine that has a link, by its address. */
  traffic(): Promise<ReadonlyMap<string, LinkTraffic>>;
}

/** What of a sandbox its agent is told. */
type AssignedTo = Pick<MachineRecord, "id" | "name" | "env" | "blockDevice">;

/** The gateway waits for the agents' answers to new keys before it goes on: no longer than this. */
const KEYS_PATIENCE_MS = 3_000;

/** Users' processes of one sandbox; the machine's own limit lies far above. */
export const MAX_PROCESSES = 4_096;

export class Machines {
  readonly parts: HostParts;
  readonly store: MachineRecordStore;
  readonly events: MachineEvents;
  readonly queue = new SerialQueue();
  readonly doze: Doze;
  readonly metrics: Metrics;
  /** How long operations took, by operation and result. */
  readonly timings: Histogram;
  readonly #records = new Map<string, MachineRecord>();
  /** Machines under a restore in place: requests for them answer 503. */
  readonly #busy = new Set<string>();
  /** Ends calls of agents: of machines that are to be destroyed, or that a stop has waited for long enough. */
  readonly #cuts = new Map<string, AbortController>();
  keys: KeySet = { issuer: "", keys: [] };

  constructor(parts: HostParts) {
    this.parts = parts;
    this.metrics = parts.metrics ?? new Metrics();
    this.timings = operationHistogram(this.metrics);
    this.store = new MachineRecordStore(parts.poolDir, parts.runDir);
    this.events = new MachineEvents(() => this.all().map((record) => this.message(record)));
    this.doze = new Doze({
      freeze: async (id, frozen) => {
        const record = this.#records.get(id);
        if (record) await this.driver(record).freezer?.freeze(this.files(record), frozen);
      },
      changed: (id) => {
        const record = this.#records.get(id);
        if (record) this.#emit(record);
      },
    });
  }

  all(): MachineRecord[] {
    return [...this.#records.values()];
  }

  /** Runs an operation in the machine's turn and notes how long it took, the wait included. */
  async timed<T>(operation: string, id: string, body: () => Promise<T>): Promise<T> {
    const { clock, log, traceOperations } = this.parts;
    const beganMs = clock.monotonicMs();
    let result = "failed";
    const inTurn = async (): Promise<T> => {
      const turn = Promise.withResolvers<void>();
      const queued = step("queue", () => turn.promise);
      const answer = await this.queue.run(id, async () => {
        turn.resolve();
        await queued;
        return await body();
      });
      result = "ok";
      return answer;
    };
    try {
      if (traceOperations !== true) return await inTurn();
      return await traced(inTurn, (steps) => {
        const ms = Math.round((clock.monotonicMs() - beganMs) * 10) / 10;
        log.info({ operation, sandbox_id: id, ...logIds(), result, ms, steps }, "operation trace");
      });
    } finally {
      this.timings.observe({ operation, result }, (clock.monotonicMs() - beganMs) / 1_000);
    }
  }

  find(id: string): MachineRecord | undefined {
    return this.#records.get(id);
  }

  get(id: string): MachineRecord {
    const record = this.#records.get(id);
    if (!record) throw new ClocheError("not_found", `there is no machine ${id} on this host`);
    return record;
  }

  /** The record, where it is in one of `phases`; otherwise says what phase it is in. */
  require(id: string, ...phases: MachinePhaseName[]): MachineRecord {
    const record = this.get(id);
    if (phases.includes(record.phase)) return record;
    throw new ClocheError(
      "failed_precondition",
      `machine ${id} is ${record.phase}, not ${phases.join(" or ")}`,
    );
  }

  driver(record: { runtime: Runtime }): MachineDriver {
    const driver = this.parts.drivers.get(record.runtime);
    if (driver) return driver;
    const known = [...this.parts.drivers.keys()].join(", ");
    throw new ClocheError(
      "failed_precondition",
      `runtime: ${record.runtime} is not available on this host; available: ${known}`,
    );
  }

  files(record: MachineRecord): MachineFiles {
    return filesOf(this.parts.poolDir, record);
  }

  /** Calls wait until a machine that dozes is awake, and keep it so. */
  agent(record: MachineRecord): GuestClient {
    return this.#agentKnowing(record.controlSecret, record);
  }

  #agentKnowing(secret: string, record: MachineRecord): GuestClient {
    return new GuestClient(record, secret, () => this.doze.hold(record.id), this.cutOf(record.id));
  }

  /** Aborted once its agent is not to be asked any more. */
  cutOf(id: string): AbortSignal {
    const cut = this.#cuts.get(id) ?? new AbortController();
    this.#cuts.set(id, cut);
    return cut.signal;
  }

  /**
   * Nobody waits for its agent any more, and its processes end: what is under way with it fails. For what must come to an end
   * whatever the machine does; its record stays as it is. Repeatable.
   */
  async cutOff(id: string, why: string): Promise<void> {
    const record = this.#records.get(id);
    if (record === undefined) return;
    this.cutOf(id);
    this.#cuts.get(id)?.abort(new Error(why));
    await this.driver(record)
      .endNow(this.files(record))
      .catch((error: unknown) => this.parts.log.warn({ err: error, sandbox_id: id }, "could not be ended"));
  }

  /** Takes a loaded record in, at start. */
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
   * Changes a record: on disk first, then in memory. A change of phase or address is a new epoch, and watchers hear of it, as
   * they do of other words.
   * `durable`: before it answers it is safe from a power cut.
   */
  change(
    id: string,
    fields: Partial<Omit<MachineRecord, "phase">>,
    options: { durable?: boolean } = {},
  ): Promise<MachineRecord> {
    return this.#change(this.get(id), fields, options);
  }

  /** The same, with the phase that the trigger leads to. Throws where it leads nowhere from here. */
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
    if (beginsToRun(record.phase, next.phase)) next.runningSinceMs = this.parts.clock.nowMs();
    await this.store.save(next, { durable: options.durable ?? false });
    this.#records.set(id, next);
    // A suspension that has begun goes on to ask its agent.
    if (next.phase !== "running" && next.phase !== "suspending") this.doze.forget(id);
    if (news || next.errorMessage !== record.errorMessage) this.#emit(next);
    return next;
  }

  /** Takes an optional field out. */
  async dropField(id: string, field: "snapshot" | "restore" | "nextControlSecret"): Promise<void> {
    const { [field]: _, ...rest } = this.get(id);
    await this.#replace(rest as MachineRecord);
  }

  /** The machine is gone: its directory too. Repeatable. */
  async forget(id: string): Promise<void> {
    await this.store.remove(id);
    const record = this.#records.get(id);
    this.#records.delete(id);
    this.doze.forget(id);
    this.#busy.delete(id);
    this.#cuts.delete(id);
    if (record) {
      const gone = create(MachineSchema, { ...this.message(record), phase: MachinePhase.DESTROYED });
      this.events.emit(MachineEvent_Kind.CHANGED, gone);
    }
    this.doze.drop(id);
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
      doze: this.doze.count(record.id),
      channelKey: hasChannel(record) ? channelKeyOf(record.controlSecret) : new Uint8Array(),
    });
  }

  /**
   * Tells a machine's agent who it is, and gives it a new control secret. Repeatable after a crash in its middle: the agent
   * then knows the old secret or the next one.
   */
  async assign(
    id: string,
    options: { renewIdentity: boolean; startServices: boolean },
  ): Promise<{ started: string[]; failed: string[] }> {
    const before = this.get(id);
    const nextControlSecret = this.newControlSecret();
    const maybeKnown = [before.controlSecret, before.nextControlSecret].filter((one) => one !== undefined);
    const record = await this.change(id, { nextControlSecret });
    const request = this.assignRequest(record, nextControlSecret, options);
    for (const [index, secret] of maybeKnown.entries()) {
      try {
        const answer = await this.#agentKnowing(secret, record).assign(request);
        const { nextControlSecret: _, ...rest } = this.get(id);
        await this.#replace({ ...rest, controlSecret: nextControlSecret });
        return { started: answer.startedServices, failed: answer.failedServices };
      } catch (error) {
        const refused = error instanceof ClocheError && error.code === "unauthenticated";
        if (!refused || index === maybeKnown.length - 1) throw error;
      }
    }
    throw new ClocheError("internal", "no control secret is known");
  }

  newControlSecret(): string {
    return Buffer.from(this.parts.randomBytes(32)).toString("base64url");
  }

  assignRequest(
    to: AssignedTo,
    controlSecret: string,
    options: { renewIdentity: boolean; startServices: boolean },
  ): AssignRequestJson {
    const { clock, randomBytes } = this.parts;
    return {
      ...this.#told(to),
      ...options,
      controlSecret,
      entropyBase64: Buffer.from(randomBytes(32)).toString("base64"),
      wallClockMs: clock.nowMs(),
    };
  }

  /** Stands for what an Assign tells of the sandbox itself: the same for two that tell the same. */
  assignmentOf(to: AssignedTo): string {
    return createHash("sha256")
      .update(JSON.stringify(this.#told(to)))
      .digest("hex");
  }

  #told(to: AssignedTo) {
    return {
      sandboxId: to.id,
      hostname: hostnameOf(to),
      keys: this.guestKeys(),
      env: to.env,
      maxProcesses: MAX_PROCESSES,
      dnsServers: [...this.parts.dnsServers],
      blockDevice: to.blockDevice ?? "",
    };
  }

  async #replace(record: MachineRecord): Promise<void> {
    await this.store.save(record, { durable: false });
    this.#records.set(record.id, record);
  }

  /** The keys of the last time, for machines adopted before the gateway speaks. */
  async loadKeys(): Promise<void> {
    const known = (await readJsonFile(this.#keysPath)) as KeySet | undefined;
    if (known) this.keys = known;
  }

  /**
   * Keeps the key set and pushes it to every agent. Those that are slow are not waited for: they have it a little later, or with
   * their next Assign.
   */
  async setKeys(keys: KeySet): Promise<void> {
    this.keys = keys;
    await writeDurably(this.#keysPath, JSON.stringify(keys));
    const pushes = this.all()
      // Only these read keys: of the others the edge is told, which verifies for them.
      .filter(({ phase, channel }) => phase === "running" && channel === undefined)
      .map((record) => this.#pushKeys(record));
    const patience = new AbortController();
    const waited = this.parts.clock.sleep(KEYS_PATIENCE_MS, patience.signal).catch(() => undefined);
    await Promise.race([Promise.all(pushes), waited]);
    patience.abort();
  }

  async #pushKeys(record: MachineRecord): Promise<void> {
    try {
      await this.agent(record).setVerificationKeys(this.guestKeys());
    } catch (error) {
      this.parts.log.warn({ err: error, sandbox_id: record.id }, "keys not pushed");
    }
  }

  get #keysPath(): string {
    return join(this.parts.poolDir, "verification-keys.json");
  }

  guestKeys(): { issuer: string; keys: { kid: string; jwkJson: string }[] } {
    return {
      issuer: this.keys.issuer,
      keys: this.keys.keys.map(({ kid, jwk }) => ({ kid, jwkJson: JSON.stringify(jwk) })),
    };
  }
}

/** Before it has a secret there is no agent to reach. */
const hasChannel = ({ channel, controlSecret }: MachineRecord): boolean =>
  channel === 1 && controlSecret !== "";

const phaseNumbers: Record<MachinePhaseName, MachinePhase> = {
  starting: MachinePhase.STARTING,
  running: MachinePhase.RUNNING,
  suspending: MachinePhase.SUSPENDING,
  suspended: MachinePhase.SUSPENDED,
  resuming: MachinePhase.RESUMING,
  stopped: MachinePhase.STOPPED,
  failed: MachinePhase.FAILED,
  // To those who watch, a machine that is being destroyed runs no more; DESTROYED comes when it is gone.
  destroying: MachinePhase.STOPPED,
};

/** A suspend that failed, or was cut off, had not stopped it. */
const beginsToRun = (from: MachinePhaseName, to: MachinePhaseName): boolean =>
  to === "running" && from !== "running" && from !== "suspending";

/** The display name as a host name; the sandbox's id where the name has nothing to offer. */
function hostnameOf(record: { id: string; name: string }): string {
  const text = record.name
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "")
    .slice(0, 63)
    .replace(/-+$/, "");
  return text || record.id;
}
