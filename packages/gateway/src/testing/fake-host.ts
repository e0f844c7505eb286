/**
 * A host in memory, for tests: a model of machines behind HostService through a router transport, so that requests and
 * answers go through the real codec. Any call can be made to fail before or after its effect, or to hang.
 */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { rfc3339 } from "@cloche/base";
import {
  ClocheError,
  defaults,
  type Fence,
  fenceOf,
  internalHeaders,
  isBehind,
  isOlderFence,
  listPositionText,
  parseListPosition,
} from "@cloche/protocol";
import {
  type Egress,
  type EgressDenialSchema,
  HostCheckpointSchema,
  type HostCheckpoint,
  HostService,
  type Machine,
  type MachineEvent,
  MachineEvent_Kind,
  AuditEventSchema,
  MachineEventSchema,
  MachinePhase,
  MachineSchema,
  StoredImageSchema,
  type MachineSampleSchema,
  type MachineSpec,
  type ReadyMachineSchema,
} from "@cloche/protocol/host";
import {
  Code,
  ConnectError,
  createClient,
  createRouterTransport,
  type ServiceImpl,
  type StreamRequest,
  type UnaryRequest,
} from "@connectrpc/connect";
import { connectErrorFrom } from "../errors.ts";
import type { HostClient } from "../hosts/host-calls.ts";
import { FakeStorage } from "./fake-storage.ts";

export type HostMethod = Exclude<keyof HostClient, "watchMachines">;

/**
 * Where a planned fault happens: before the call has an effect, halfway (the machine is left broken), after the effect
 * (the answer is lost), or the call hangs until `letGo` and then fails.
 */
export type FaultPoint = "before" | "halfway" | "after" | "hang";

interface Fault {
  method: HostMethod;
  point: FaultPoint;
  code: Code;
  message: string;
  times: number;
}

let memoriesMade = 0;

export class FakeHost {
  readonly machines = new Map<string, Machine>();
  storage = new FakeStorage();
  /** Puts suspended machines into storage at once. */
  stores = false;
  cpuClass = "x64-genuineintel-6-143-1f0c93ab.gvisor-20260905.0";
  /** The memory of each machine: a value that no newly started machine has, so that a kept memory can be recognised. */
  readonly memories = new Map<string, string>();
  /** The checkpoint that each machine's disk was made from. */
  readonly seeds = new Map<string, string>();
  /** The host was lost, and its machines are frozen until they are admitted. */
  isFrozen = false;
  /** Every call that arrived: `method sandbox-id`. */
  readonly calls: string[] = [];
  readonly client: HostClient;
  keys: { issuer: string; kids: string[] } = { issuer: "", kids: [] };
  idleLimits = new Map<string, number>();
  /** The egress policy of each machine. */
  egress = new Map<string, Egress>();
  /** Groups of forks that were not ended, with their sources' ids. */
  readonly forkGroups = new Map<string, string>();
  /** Machines that were suspended without memory. */
  readonly diskOnly = new Set<string>();
  #ready: MessageInitShape<typeof ReadyMachineSchema>[] = [];
  denials: MessageInitShape<typeof EgressDenialSchema>[] = [];
  /** Samples of every machine, oldest first. */
  samples: MessageInitShape<typeof MachineSampleSchema>[] = [];
  runtimes = ["gvisor"];
  nowMs = (): number => Date.UTC(2026, 0, 1);
  /** Whether new checkpoints become visible. */
  uploads = true;
  /** As a host of a cluster, refuses calls that are meant for another generation; undefined: accepts all. */
  generation: number | undefined;
  /** The host cannot be reached. */
  isCutOff = false;
  /** By sandbox, the newest fence of the steps that the host accepted. */
  readonly fences = new Map<string, Fence>();
  /** The sandboxes of each call that admitted machines. */
  admitted: string[][] = [];
  #faults: Fault[] = [];
  #epoch = 0n;
  #watchers = new Set<{ events: MachineEvent[]; wake: () => void }>();
  #breakStreams = new AbortController();
  #letGo = Promise.withResolvers<void>();
  #importing: PromiseWithResolvers<void> | undefined;

  constructor() {
    const transport = createRouterTransport(
      (router) => {
        router.service(HostService, this.#service());
      },
      { transport: { interceptors: [(next) => (request) => this.#admits(request) ?? next(request)] } },
    );
    this.client = createClient(HostService, transport);
  }

  /** Throws for a call that is meant for another generation, or is older than an accepted call. */
  #admits(request: UnaryRequest | StreamRequest): undefined {
    if (this.isCutOff) throw new ConnectError("no route to host", Code.Unavailable);
    if (this.generation === undefined) return undefined;
    const generation = request.header.get(internalHeaders.hostGeneration);
    if (generation !== String(this.generation))
      throw new ConnectError(`this is generation ${this.generation}, not ${generation}`, Code.Aborted);
    const fence = fenceOf(request.header.get(internalHeaders.operation) ?? "");
    // Reads are never too old.
    if (request.stream || /^(get|list)/.test(request.method.localName)) return undefined;
    const sandboxId = sandboxOf(request.message);
    if (fence === undefined || sandboxId === "") return undefined;
    const newest = this.fences.get(sandboxId);
    if (newest !== undefined && isOlderFence(fence, newest))
      throw new ConnectError("a later operation has been here", Code.Aborted);
    this.fences.set(sandboxId, { number: fence.number, attempt: fence.attempt });
    return undefined;
  }

  get checkpoints(): HostCheckpoint[] {
    return this.storage.checkpoints;
  }

  /** Ids of the machines that run now. */
  running(): string[] {
    const running = [...this.machines.values()].filter(({ phase }) => phase === MachinePhase.RUNNING);
    return this.isFrozen ? [] : running.map(({ sandboxId }) => sandboxId);
  }

  /** Puts the machine's image into storage. */
  store(sandboxId: string): void {
    const stored = this.storage.store(sandboxId, this.memories.get(sandboxId) ?? "", this.cpuClass);
    this.set(sandboxId, MachinePhase.SUSPENDED, { storedImage: stored });
  }

  /** The next `times` calls of `method` fail at `point`. */
  fault(
    method: HostMethod,
    point: FaultPoint,
    code = Code.Unavailable,
    times = 1,
    message = "the host is unwell",
  ): void {
    this.#faults.push({ method, point, code, message, times });
  }

  /** Lets calls that hang fail. */
  letGo(): void {
    this.#letGo.resolve();
    this.#letGo = Promise.withResolvers<void>();
  }

  /** Imports last until `releaseImports`; meanwhile their machines are STARTING. */
  holdImports(): void {
    this.#importing = Promise.withResolvers();
  }

  releaseImports(): void {
    this.#importing?.resolve();
    this.#importing = undefined;
  }

  clearFaults(): void {
    this.#faults = [];
  }

  phase(sandboxId: string): MachinePhase | undefined {
    return this.machines.get(sandboxId)?.phase;
  }

  /** Acts as a reboot: running machines are stopped; disks and memory images stay. */
  reboot(): void {
    for (const machine of this.machines.values()) {
      if (machine.phase !== MachinePhase.SUSPENDED) this.set(machine.sandboxId, MachinePhase.STOPPED);
    }
    this.breakStreams();
  }

  crash(sandboxId: string, errorMessage: string): void {
    const machine = this.machines.get(sandboxId);
    if (machine !== undefined) machine.errorMessage = errorMessage;
    this.set(sandboxId, MachinePhase.FAILED);
  }

  /** Loses a machine without a word, as a broken disk would. */
  lose(sandboxId: string): void {
    this.machines.delete(sandboxId);
  }

  reportIdle(sandboxId: string): void {
    const machine = this.machines.get(sandboxId);
    if (machine !== undefined) this.#emit(MachineEvent_Kind.IDLE, machine);
  }

  /** Reports an audit event: the host answered a call of the data plane. */
  tellAudit(fields: MessageInitShape<typeof AuditEventSchema>): void {
    const audit = create(AuditEventSchema, { actor: "token:test", ...fields });
    for (const watcher of this.#watchers) {
      watcher.events.push(create(MachineEventSchema, { kind: MachineEvent_Kind.AUDIT, audit }));
      watcher.wake();
    }
  }

  /** Offers these ready machines, of the default shape, instead of the former ones. */
  offer(ready: { sandboxId: string; name: string }[]): void {
    const { template, cpus, memoryMb, diskMb } = defaults;
    this.#ready = ready.map((one) => ({ ...one, runtime: "gvisor", template, cpus, memoryMb, diskMb }));
    for (const watcher of this.#watchers) {
      watcher.events.push(this.#readyEvent());
      watcher.wake();
    }
  }

  #readyEvent(): MachineEvent {
    return create(MachineEventSchema, { kind: MachineEvent_Kind.READY, ready: this.#ready });
  }

  addCheckpoint(checkpoint: Partial<HostCheckpoint> & { id: string; teamId: string }): HostCheckpoint {
    const { $typeName: _type, $unknown: _unknown, ...fields } = checkpoint;
    const added = create(HostCheckpointSchema, {
      visible: true,
      runtime: "gvisor",
      createdAt: "2026-01-01T00:00:00.000Z",
      ...fields,
    });
    this.checkpoints.push(added);
    return added;
  }

  /** Ends every stream of machines; the gateway listens anew. */
  breakStreams(): void {
    this.#breakStreams.abort();
    this.#breakStreams = new AbortController();
    for (const watcher of this.#watchers) watcher.wake();
  }

  set(sandboxId: string, phase: MachinePhase, changes: Partial<Machine> = {}): Machine {
    const known = this.machines.get(sandboxId);
    if (known === undefined) throw new Error(`the fake host has no machine ${sandboxId}`);
    this.#epoch += 1n;
    const { $typeName: _type, $unknown: _unknown, ...fields } = { ...known, ...changes };
    const machine = create(MachineSchema, { ...fields, phase, epoch: this.#epoch });
    // The image is no longer valid once the machine leaves SUSPENDED.
    if (phase !== MachinePhase.SUSPENDED) delete machine.storedImage;
    this.machines.set(sandboxId, machine);
    this.#emit(MachineEvent_Kind.CHANGED, machine);
    return machine;
  }

  add(
    spec: Partial<MachineSpec> & { sandboxId: string },
    phase = MachinePhase.RUNNING,
    fields: MessageInitShape<typeof MachineSchema> = {},
  ): Machine {
    const machine = create(MachineSchema, {
      sandboxId: spec.sandboxId,
      teamId: spec.teamId ?? "",
      runtime: spec.runtime || "gvisor",
      agentHost: "127.0.0.1",
      agentPort: 4070,
      cpus: spec.cpus ?? 1,
      memoryMb: spec.memoryMb ?? 512,
      diskMb: spec.diskMb ?? 1024,
      ...fields,
    });
    this.machines.set(spec.sandboxId, machine);
    this.memories.set(spec.sandboxId, `memory ${(memoriesMade += 1)}`);
    this.seeds.set(spec.sandboxId, spec.checkpointId ?? "");
    if (spec.egress !== undefined) this.egress.set(spec.sandboxId, spec.egress);
    return this.set(spec.sandboxId, phase);
  }

  // oxlint-disable-next-line max-lines-per-function -- a table of methods, a few lines each
  #service(): ServiceImpl<typeof HostService> {
    return {
      createMachine: ({ spec }) =>
        this.#call("createMachine", spec?.sandboxId ?? "", () => {
          if (spec === undefined) throw new ClocheError("invalid_argument", "spec is missing");
          const known = this.machines.get(spec.sandboxId);
          if (known === undefined) return this.add(spec);
          if (known.phase === MachinePhase.STOPPED) return this.set(spec.sandboxId, MachinePhase.RUNNING);
          if (known.phase === MachinePhase.RUNNING) return known;
          throw new ClocheError(
            "failed_precondition",
            `the machine is in phase ${MachinePhase[known.phase]}`,
          );
        }),
      endForkGroup: ({ group }) =>
        this.#call("endForkGroup", group, () => {
          this.forkGroups.delete(group);
          return {};
        }),
      forkMachine: ({ sourceSandboxId, spec, group }) =>
        this.#call("forkMachine", spec?.sandboxId ?? "", () => {
          if (spec === undefined) throw new ClocheError("invalid_argument", "spec is missing");
          const known = this.machines.get(spec.sandboxId);
          if (known?.phase === MachinePhase.RUNNING) return known;
          if (this.forkGroups.has(group)) return this.add(spec);
          const source = this.machines.get(sourceSandboxId);
          if (source?.phase !== MachinePhase.RUNNING && source?.phase !== MachinePhase.SUSPENDED) {
            throw new ClocheError("failed_precondition", "the source does not run");
          }
          if (group !== "") this.forkGroups.set(group, sourceSandboxId);
          return this.add(spec);
        }),
      destroyMachine: ({ sandboxId }) =>
        this.#call("destroyMachine", sandboxId, () => {
          this.#destroy(sandboxId);
          return {};
        }),
      suspendMachine: ({ sandboxId, diskOnly }) =>
        this.#call("suspendMachine", sandboxId, () => {
          if (diskOnly && this.phase(sandboxId) === MachinePhase.RUNNING) this.diskOnly.add(sandboxId);
          if (this.diskOnly.has(sandboxId)) this.memories.set(sandboxId, "");
          this.#move(sandboxId, MachinePhase.RUNNING, MachinePhase.SUSPENDED);
          if (this.stores && this.#get(sandboxId).storedImage === undefined) this.store(sandboxId);
          return this.#get(sandboxId);
        }),
      resumeMachine: ({ sandboxId }) =>
        this.#call("resumeMachine", sandboxId, () => {
          const machine = this.#move(sandboxId, MachinePhase.SUSPENDED, MachinePhase.RUNNING);
          if (!this.diskOnly.delete(sandboxId)) return machine;
          return this.set(sandboxId, MachinePhase.RUNNING, { errorMessage: "without its memory" });
        }),
      importMachine: ({ spec, imageKey }) =>
        this.#call("importMachine", spec?.sandboxId ?? "", async () => {
          if (spec === undefined) throw new ClocheError("invalid_argument", "spec is missing");
          if (this.machines.has(spec.sandboxId)) await this.#importing?.promise;
          return this.machines.get(spec.sandboxId) ?? (await this.#import(spec, imageKey));
        }),
      checkpointMachine: ({ sandboxId, checkpointId, name }) =>
        this.#call("checkpointMachine", sandboxId, () => {
          const { teamId } = this.#get(sandboxId);
          const known = this.checkpoints.find(({ id }) => id === checkpointId);
          if (known !== undefined) return known;
          const createdAt = rfc3339(this.nowMs());
          const taken = { name, teamId, sandboxId, createdAt, visible: this.uploads, automatic: true };
          return this.addCheckpoint({ id: checkpointId, ...taken });
        }),
      admitMachines: ({ sandboxIds }) =>
        this.#call("admitMachines", "", () => {
          this.admitted.push(sandboxIds.toSorted());
          for (const id of this.machines.keys()) if (!sandboxIds.includes(id)) this.#destroy(id);
          this.isFrozen = false;
          return {};
        }),
      getMachine: ({ sandboxId }) => this.#call("getMachine", sandboxId, () => this.#get(sandboxId)),
      listMachines: () => this.#call("listMachines", "", () => ({ machines: [...this.machines.values()] })),
      watchMachines: (_request, context) => this.#watch(context.signal),
      updateMachine: ({ sandboxId, idleSuspendSeconds, egress }) =>
        this.#call("updateMachine", sandboxId, () => {
          if (egress !== undefined) this.egress.set(sandboxId, egress);
          if (idleSuspendSeconds !== undefined) this.idleLimits.set(sandboxId, idleSuspendSeconds);
          return this.#get(sandboxId);
        }),
      getMachineEgress: ({ sandboxId }) =>
        this.#call("getMachineEgress", sandboxId, () => {
          this.#get(sandboxId);
          return { deniedPackets: 3, deniedNames: 1, recent: this.denials };
        }),
      getMachineMetrics: ({ sandboxId }) =>
        this.#call("getMachineMetrics", sandboxId, () => {
          this.#get(sandboxId);
          return { now: this.samples.at(-1), history: this.samples };
        }),
      setVerificationKeys: ({ issuer, keys }) =>
        this.#call("setVerificationKeys", "", () => {
          this.keys = { issuer, kids: keys.map(({ kid }) => kid) };
          return {};
        }),
      listCheckpoints: ({ teamId, sandboxId, limit, pageToken, id: wanted }) =>
        this.#call("listCheckpoints", sandboxId, () => {
          const after = pageToken === "" ? undefined : parseListPosition("page_token", pageToken);
          const position = ({ createdAt, id }: { createdAt: string; id: string }) => ({
            created_at: createdAt,
            id,
          });
          const found = this.checkpoints
            .filter((one) => one.teamId === teamId && (sandboxId === "" || one.sandboxId === sandboxId))
            .filter((one) => wanted === "" || one.id === wanted)
            .filter((one) => after === undefined || isBehind(position(one), after))
            .toSorted((a, b) => (isBehind(position(a), position(b)) ? 1 : -1));
          const page = found.slice(0, limit || undefined);
          const last = page.at(-1);
          const isLast = last === undefined || page.length === found.length;
          return { checkpoints: page, nextPageToken: isLast ? "" : listPositionText(position(last)) };
        }),
      deleteCheckpoint: ({ teamId, id }) =>
        this.#call("deleteCheckpoint", id, () => {
          const index = this.checkpoints.findIndex((one) => one.teamId === teamId && one.id === id);
          const [gone] = index < 0 ? [] : this.checkpoints.splice(index, 1);
          if (gone === undefined) throw new ClocheError("not_found", `id: there is no checkpoint "${id}"`);
          return { freedBytes: gone.sizeBytes };
        }),
      getHostInfo: () =>
        this.#call("getHostInfo", "", () => ({
          runtimes: this.runtimes,
          templates: ["base"],
          arch: "x64",
          machines: this.machines.size,
        })),
    };
  }

  async #call<T>(method: HostMethod, sandboxId: string, effect: () => T | Promise<T>): Promise<T> {
    this.calls.push(`${method} ${sandboxId}`.trim());
    const fault = this.#faults.find((one) => one.method === method && one.times > 0);
    if (fault !== undefined) fault.times -= 1;
    if (fault?.point === "hang") await this.#letGo.promise;
    if (fault?.point === "before" || fault?.point === "hang")
      throw new ConnectError(fault.message, fault.code);
    try {
      const result = await effect();
      if (fault?.point === "halfway") {
        this.crash(sandboxId, fault.message);
        throw new ConnectError(fault.message, fault.code);
      }
      if (fault?.point === "after") throw new ConnectError(fault.message, fault.code);
      return result;
    } catch (error) {
      throw error instanceof ClocheError ? connectErrorFrom(error) : error;
    }
  }

  #get(sandboxId: string): Machine {
    const machine = this.machines.get(sandboxId);
    if (machine === undefined) throw new ClocheError("not_found", `there is no machine ${sandboxId}`);
    return machine;
  }

  #destroy(sandboxId: string): void {
    if (!this.machines.has(sandboxId)) return;
    this.set(sandboxId, MachinePhase.DESTROYED);
    this.machines.delete(sandboxId);
    this.memories.delete(sandboxId);
    this.diskOnly.delete(sandboxId);
  }

  async #import(spec: MachineSpec, key: string): Promise<Machine> {
    const memory = this.storage.images.get(key);
    if (memory === undefined)
      throw new ClocheError("failed_precondition", "the suspended image is no longer in storage");
    const cpuClass = this.storage.classOf(key);
    this.add(spec, MachinePhase.STARTING);
    await this.#importing?.promise;
    const isRestorable = memory !== "" && cpuClass === this.cpuClass;
    if (isRestorable) this.memories.set(spec.sandboxId, memory);
    else this.diskOnly.add(spec.sandboxId);
    const storedImage = create(StoredImageSchema, { key, cpuClass, bytes: 1_000 });
    return this.set(spec.sandboxId, MachinePhase.SUSPENDED, { storedImage });
  }

  #move(sandboxId: string, from: MachinePhase, to: MachinePhase): Machine {
    const machine = this.#get(sandboxId);
    if (machine.phase === to) return machine;
    if (machine.phase === from) return this.set(sandboxId, to);
    throw new ClocheError("failed_precondition", `the machine is in phase ${MachinePhase[machine.phase]}`);
  }

  #emit(kind: MachineEvent_Kind, machine: Machine): void {
    for (const watcher of this.#watchers) {
      watcher.events.push(create(MachineEventSchema, { kind, machine }));
      watcher.wake();
    }
  }

  async *#watch(signal: AbortSignal): AsyncGenerator<MachineEvent> {
    const watcher = { events: [] as MachineEvent[], wake: () => undefined as void };
    this.#watchers.add(watcher);
    const broken = AbortSignal.any([signal, this.#breakStreams.signal]);
    broken.addEventListener("abort", () => watcher.wake(), { once: true });
    try {
      for (const machine of this.machines.values()) {
        yield create(MachineEventSchema, { kind: MachineEvent_Kind.PRESENT, machine });
      }
      yield this.#readyEvent();
      yield create(MachineEventSchema, { kind: MachineEvent_Kind.SYNCED });
      while (!broken.aborted) {
        for (let event = watcher.events.shift(); event !== undefined; event = watcher.events.shift())
          yield event;
        if (broken.aborted) return;
        await new Promise<void>((resolve) => {
          watcher.wake = resolve;
        });
      }
    } finally {
      this.#watchers.delete(watcher);
    }
  }
}

/** The sandbox whose machine a request changes. */
function sandboxOf(message: object): string {
  const { sandboxId = "", spec } = message as { sandboxId?: string; spec?: { sandboxId: string } };
  return spec?.sandboxId ?? sandboxId;
}
