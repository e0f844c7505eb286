/**
 * What a gateway takes over from the answers and events of a host. The computer of a host may have been taken over: then a report may
 * have any form and any size. Here values that no host of ours sends are cut, replaced or refused, before anything else reads them.
 * Which sandboxes a host may speak of at all, `RouteTable.isElsewhere` says.
 */
import { isDisplayName, isSandboxId, limits } from "@cloche/protocol";
import { type AuditEvent, type Machine, MachinePhase, type ReadyMachine } from "@cloche/protocol/host";

/** Characters of a message or of another text. */
const textMax = 1_000;
const messageMax = 4_096;
/** Machines made ahead that one host offers. */
const readyMax = 1_000;
const imageKey = /^[a-z0-9-]{1,64}$/;
/**
 * As a host's driver makes it, for example `x64-genuineintel-6-143-1f0c93ab.gvisor-20260905.0`. Its end is what the operator's own runsc
 * calls itself, such as Debian's `0.0~20260905.0-1`.
 */
const cpuClassPattern = /^[\x21-\x7e]{0,256}$/;
const packId = /^pack-[a-z0-9]{20}$/;
/** As many as a checkpoint may have. */
const packsMax = 65_534;
/** The host's clock may be ahead by so much: hosts that lost their time server go on. */
const aheadMs = 3_600_000;

const phases: ReadonlySet<number> = new Set(
  Object.values(MachinePhase).filter((value) => typeof value === "number"),
);

const text = (value: string): string => value.slice(0, textMax);

/** Why a host refused a call. It may name five paths of a sandbox, of which very long ones are cut. */
export const reportedMessage = (message: string): string => message.slice(0, messageMax);

/** A time of the host's clock; 0 where no machine can have it. */
const time = (value: bigint, nowMs: number): bigint =>
  value > 0n && value <= BigInt(nowMs + aheadMs) ? value : 0n;

/** Undefined: no machine has such an id. */
export function reportedMachine(machine: Machine, nowMs: number): Machine | undefined {
  if (!isSandboxId(machine.sandboxId)) return undefined;
  const { storedImage, channelKey, ...rest } = machine;
  return {
    ...rest,
    phase: phases.has(machine.phase) ? machine.phase : MachinePhase.UNSPECIFIED,
    teamId: text(machine.teamId),
    runtime: text(machine.runtime),
    agentHost: text(machine.agentHost),
    errorMessage: text(machine.errorMessage),
    runningSinceUnixMs: time(machine.runningSinceUnixMs, nowMs),
    channelKey: channelKey.slice(0, 32),
    ...(storedImage !== undefined && isImage(storedImage) && { storedImage }),
  };
}

/** Whether a host may have this class, whose members restore each other's memory. */
export const isCpuClass = (value: string): boolean => cpuClassPattern.test(value);

function isImage({ key, cpuClass, bytes, packs }: NonNullable<Machine["storedImage"]>): boolean {
  const isPack = ({ id, bytes: size }: { id: string; bytes: number }): boolean =>
    packId.test(id) && Number.isSafeInteger(size) && size >= 0;
  const isRight = imageKey.test(key) && isCpuClass(cpuClass) && Number.isSafeInteger(bytes);
  return isRight && packs.length <= packsMax && packs.every(isPack);
}

/** Those with an id and a name that a sandbox may have. */
export const reportedReady = (ready: readonly ReadyMachine[]): ReadyMachine[] =>
  ready
    .slice(0, readyMax)
    .filter(({ sandboxId, name }) => isSandboxId(sandboxId) && isDisplayName(name, limits.sandboxNameLength));

/**
 * Undefined: a host notes no such event. Only calls with a sandbox's token are answered by hosts. An event is not lost by a clock that is
 * wrong: it is noted as of now.
 */
export function reportedAudit(event: AuditEvent, nowMs: number): AuditEvent | undefined {
  const { actor } = event;
  if (!actor.startsWith("token:")) return undefined;
  const { teamId, action, subject, requestId, result, detail } = event;
  return {
    ...event,
    atUnixMs: time(event.atUnixMs, nowMs) || BigInt(nowMs),
    teamId: text(teamId),
    actor: text(actor),
    action: text(action),
    subject: text(subject),
    requestId: text(requestId),
    result: text(result),
    detail: text(detail),
  };
}

/**
 * Of all machines that one host may report: about the memory that they take here. 10,000 suspended sandboxes, as many as a team may have
 * by default, take 174 MB if each has 4 GB in storage.
 */
const weightMax = 256 * 1024 * 1024;
const machineWeight = 1_024;
const packWeight = 128;

const weightOf = ({ errorMessage, storedImage }: Machine): number =>
  machineWeight + errorMessage.length + (storedImage?.packs.length ?? 0) * packWeight;

/** The machines of one host, by sandbox, as far as they fit into the memory that a host may take. */
export class ReportedMachines {
  readonly #machines = new Map<string, Machine>();
  #weight = 0;

  get(sandboxId: string): Machine | undefined {
    return this.#machines.get(sandboxId);
  }

  values(): IterableIterator<Machine> {
    return this.#machines.values();
  }

  /** Throws when the host reports more than any host can have. */
  set(machine: Machine): void {
    const weight = this.#weight + weightOf(machine) - this.#weightOf(machine.sandboxId);
    if (weight > weightMax) throw new Error("the host reports more machines than a host can have");
    this.#weight = weight;
    this.#machines.set(machine.sandboxId, machine);
  }

  delete(sandboxId: string): void {
    this.#weight -= this.#weightOf(sandboxId);
    this.#machines.delete(sandboxId);
  }

  #weightOf(sandboxId: string): number {
    const machine = this.#machines.get(sandboxId);
    return machine === undefined ? 0 : weightOf(machine);
  }
}
