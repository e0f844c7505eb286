/**
 * Turns a create or fork request into the fields of the new sandbox: defaults, limits, checkpoint, runtime, template.
 */
import type { Clock } from "@cloche/base";
import {
  ClocheError,
  defaults,
  generateName,
  limits,
  newSandboxId,
  type RandomBytes,
} from "@cloche/protocol";
import type { HostCheckpoint, HostInfo } from "@cloche/protocol/host";
import type { CreateSandboxRequest, ForkSandboxRequest } from "@cloche/protocol/public";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Caller } from "../lifecycle/audit-log.ts";
import type { Fleet } from "../hosts/fleet.ts";
import type { Choose } from "../hosts/placement.ts";
import type { CallContext } from "../hosts/host-calls.ts";
import type { NewSandbox } from "../lifecycle/lifecycle.ts";
import type { TeamCheckpoints } from "../storage/team-checkpoints.ts";
import type { ReadyMachines } from "../lifecycle/ready-machines.ts";
import { gatewayLimits } from "../limits.ts";
import {
  checkpointEvery,
  displayName,
  egress,
  environment,
  metadata,
  numberWithin,
  oneOf,
  onHostLoss,
  onTimeout,
  ports,
  refuse,
  wholeWithin,
} from "./fields.ts";

export const runtimes = ["gvisor", "qemu"] as const;

export class Creation {
  readonly #fleet: Fleet;
  readonly #checkpoints: TeamCheckpoints;
  readonly #ready: ReadyMachines;
  readonly #clock: Clock;
  readonly #randomBytes: RandomBytes;
  #info: { value: HostInfo; untilMs: number } | undefined;

  constructor(
    fleet: Fleet,
    checkpoints: TeamCheckpoints,
    ready: ReadyMachines,
    clock: Clock,
    randomBytes: RandomBytes,
  ) {
    this.#fleet = fleet;
    this.#checkpoints = checkpoints;
    this.#ready = ready;
    this.#clock = clock;
    this.#randomBytes = randomBytes;
  }

  /** The id may be that of a ready machine, which must be released once the record is written (ready-machines.ts). */
  async forCreate(
    caller: Caller,
    request: CreateSandboxRequest,
    call: CallContext,
    choose: Choose,
  ): Promise<NewSandbox> {
    const { timeoutSecondsMax } = limits;
    const wanted: NewSandbox = {
      id: "",
      hostId: "",
      name: request.name && displayName("name", request.name),
      runtime: request.runtime === "" ? "" : oneOf("runtime", request.runtime, runtimes),
      template: request.template || defaults.template,
      cpus: numberWithin("cpus", request.cpus ?? defaults.cpus, limits.cpusMin, limits.cpusMax),
      memoryMb: wholeWithin(
        "memory_mb",
        request.memoryMb ?? defaults.memoryMb,
        limits.memoryMbMin,
        limits.memoryMbMax,
      ),
      diskMb: wholeWithin("disk_mb", request.diskMb ?? defaults.diskMb, limits.diskMbMin, limits.diskMbMax),
      env: environment("env", request.env),
      metadata: metadata("metadata", request.metadata),
      publicPorts: ports("public_ports", request.publicPorts),
      egress: egress("egress", request.egress),
      sourceSandboxId: "",
      sourceCheckpointId: request.checkpointId,
      timeoutSeconds: wholeWithin("timeout_seconds", request.timeoutSeconds ?? 0, 0, timeoutSecondsMax),
      onTimeout: onTimeout("on_timeout", request.onTimeout || "delete"),
      idleSuspendSeconds: wholeWithin(
        "idle_suspend_seconds",
        request.idleSuspendSeconds ?? 0,
        0,
        timeoutSecondsMax,
      ),
      autoResume: request.autoResume,
      onHostLoss: onHostLoss("on_host_loss", request.onHostLoss || "error"),
      checkpointEverySeconds: checkpointEvery(
        "checkpoint_every_seconds",
        request.checkpointEverySeconds ?? 0,
      ),
    };
    if (request.checkpointId !== "") {
      const checkpoint = await this.#checkpoint(caller, request.checkpointId, "", call);
      wanted.runtime ||= checkpoint.runtime;
      if (request.diskMb === undefined) wanted.diskMb = checkpoint.diskMb || wanted.diskMb;
      checkFits(wanted, checkpoint);
    }
    await this.#checkHostHas(wanted, request.template, call);
    // A ready machine has an empty disk.
    const mayBeReady = request.checkpointId === "";
    wanted.hostId = choose({ ...wanted, preferred: mayBeReady ? this.#ready.hosts(wanted) : [] });
    const ready = mayBeReady ? await this.#ready.take(wanted.hostId, wanted) : undefined;
    wanted.id = ready?.sandboxId ?? newSandboxId(this.#randomBytes);
    wanted.name ||= ready?.name ?? generateName(this.#randomBytes);
    return wanted;
  }

  /**
   * `count` clones, each with its own id; a given name becomes `name-1`, `name-2`, …. The other fields: see `#forFork`.
   */
  async forForks(
    caller: Caller,
    request: ForkSandboxRequest,
    source: SandboxRecord,
    call: CallContext,
    choose: Choose,
  ): Promise<NewSandbox[]> {
    const count = wholeWithin("count", request.count ?? 1, 1, limits.forkCount);
    const first = await this.#forFork(caller, request, source, call);
    const hostOf = (): string => choose({ ...first, preferred: [source.hostId] });
    if (count === 1) return [{ ...first, hostId: hostOf() }];
    const longest = limits.sandboxNameLength - `-${count}`.length;
    if ([...request.name].length > longest)
      throw refuse("name", request.name, `at most ${longest} characters with count ${count}`);
    return Array.from({ length: count }, (_, index) => ({
      ...first,
      hostId: hostOf(),
      id: newSandboxId(this.#randomBytes),
      name: request.name === "" ? generateName(this.#randomBytes) : `${request.name}-${index + 1}`,
    }));
  }

  /**
   * Fields missing in the request are the source's, but public ports: they are public only where the owner marked them.
   */
  async #forFork(
    caller: Caller,
    request: ForkSandboxRequest,
    source: SandboxRecord,
    call: CallContext,
  ): Promise<NewSandbox> {
    const { timeoutSecondsMax } = limits;
    const ownMetadata = Object.keys(request.metadata).length > 0;
    const timeoutSeconds = request.timeoutSeconds ?? source.timeoutSeconds;
    const idleSuspendSeconds = request.idleSuspendSeconds ?? source.idleSuspendSeconds;
    const wanted: NewSandbox = {
      id: newSandboxId(this.#randomBytes),
      hostId: "",
      name: request.name === "" ? generateName(this.#randomBytes) : displayName("name", request.name),
      runtime: source.runtime,
      template: source.template,
      cpus: source.cpus,
      memoryMb: source.memoryMb,
      diskMb: source.diskMb,
      env: source.env,
      metadata: ownMetadata ? metadata("metadata", request.metadata) : source.metadata,
      publicPorts: [],
      egress: request.egress === undefined ? source.egress : egress("egress", request.egress),
      sourceSandboxId: source.id,
      sourceCheckpointId: request.checkpointId,
      timeoutSeconds: wholeWithin("timeout_seconds", timeoutSeconds, 0, timeoutSecondsMax),
      onTimeout: source.onTimeout,
      idleSuspendSeconds: wholeWithin("idle_suspend_seconds", idleSuspendSeconds, 0, timeoutSecondsMax),
      autoResume: request.autoResume ?? source.autoResume,
      onHostLoss: onHostLoss("on_host_loss", request.onHostLoss ?? source.onHostLoss),
      checkpointEverySeconds: checkpointEvery(
        "checkpoint_every_seconds",
        request.checkpointEverySeconds ?? source.checkpointEverySeconds,
      ),
    };
    if (request.checkpointId !== "") {
      const checkpoint = await this.#checkpoint(caller, request.checkpointId, source.id, call);
      checkFits(wanted, checkpoint);
    }
    return wanted;
  }

  async #checkpoint(
    caller: Caller,
    id: string,
    sandboxId: string,
    call: CallContext,
  ): Promise<HostCheckpoint> {
    const checkpoint = await this.#checkpoints.checkpoint(caller.teamId, id, call);
    if (checkpoint === undefined || (sandboxId !== "" && checkpoint.sandboxId !== sandboxId)) {
      const whose = sandboxId === "" ? "the team" : `sandbox ${sandboxId}`;
      throw new ClocheError("not_found", `checkpoint_id: ${whose} has no checkpoint ${JSON.stringify(id)}`);
    }
    if (!checkpoint.visible) {
      throw new ClocheError(
        "failed_precondition",
        `checkpoint_id: ${id} is not yet visible in storage; wait for it with POST /v1/checkpoint/wait`,
      );
    }
    return checkpoint;
  }

  async #checkHostHas(wanted: NewSandbox, template: string, call: CallContext): Promise<void> {
    const isOrdinary = wanted.runtime === "" && template === "";
    if (isOrdinary && this.#info !== undefined) {
      wanted.runtime = this.#info.value.runtimes[0] ?? "";
      return;
    }
    const info = await this.#hostInfo(call);
    wanted.runtime ||= info.runtimes[0] ?? "";
    if (!info.runtimes.includes(wanted.runtime)) {
      throw new ClocheError(
        "failed_precondition",
        `runtime ${wanted.runtime} is not available on this host; available: ${info.runtimes.join(", ") || "none"}`,
      );
    }
    if (template !== "" && !info.templates.includes(template)) {
      throw refuse("template", template, `one of ${info.templates.join(", ")}`);
    }
  }

  async #hostInfo(call: CallContext): Promise<HostInfo> {
    const nowMs = this.#clock.nowMs();
    if (this.#info === undefined || this.#info.untilMs <= nowMs) {
      const value = await this.#fleet.any().info(call);
      if (this.#fleet.isCluster) value.runtimes = this.#fleet.runtimes();
      this.#info = { value, untilMs: nowMs + gatewayLimits.hostInfoCacheMs };
    }
    return this.#info.value;
  }
}

function checkFits(wanted: NewSandbox, checkpoint: HostCheckpoint): void {
  if (wanted.diskMb < checkpoint.diskMb) {
    throw refuse(
      "disk_mb",
      wanted.diskMb,
      `at least ${checkpoint.diskMb}, the disk of checkpoint ${checkpoint.id}`,
    );
  }
  // The host never mounts a disk that a VM has written, because its file system may be hostile.
  if (checkpoint.runtime === "qemu" && wanted.runtime === "gvisor") {
    throw new ClocheError(
      "failed_precondition",
      `checkpoint_id: ${checkpoint.id} was written by a qemu sandbox and cannot seed a gvisor one; use runtime "qemu"`,
    );
  }
}
