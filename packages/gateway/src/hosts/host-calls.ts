/**
 * The gateway's calls to one host: deadlines, retries after failures that may pass, and one kind of error. A call to a
 * host of a cluster names the host generation that it is meant for.
 */
import { type Clock, requestIds } from "@cloche/base";
import {
  ClocheError,
  type Egress,
  type ErrorCode,
  type Fence,
  fenceText,
  errorCodes,
  internalHeaders,
  machineFields,
  traceparentHeader,
  type VerificationKey,
} from "@cloche/protocol";
import type {
  HostCheckpoint,
  HostInfo,
  HostService,
  Machine,
  MachineEgress,
  MachineMetrics,
} from "@cloche/protocol/host";
import { type CallOptions, type Client, Code, ConnectError } from "@connectrpc/connect";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { gatewayLimits } from "../limits.ts";
import { reportedMachine, reportedMessage } from "./host-reports.ts";

export type HostClient = Client<typeof HostService>;

export interface CallContext {
  signal: AbortSignal;
  requestId: string;
  /** The operation and attempt that the call is a step of. */
  fence?: Fence;
}

/** For a host in a cluster, which refuses calls that are meant for another generation of it. */
export interface HostFence {
  generation(): number;
  /** Called when the host refused a call as too old; resolves when the host's row was read again. */
  refused(): Promise<void>;
}

/** The host's refusal, or the failure of the call. The message is public. */
export class HostError extends ClocheError {
  /** Trying again may help. */
  get isPassing(): boolean {
    return passingCodes.has(this.code);
  }
}
const passingCodes: ReadonlySet<ErrorCode> = new Set([
  "unavailable",
  "deadline_exceeded",
  "aborted",
  "canceled",
]);

export class HostCalls {
  readonly #clientOf: () => HostClient;
  readonly #clock: Clock;
  readonly #fence: HostFence | undefined;

  /** `clientOf`: called for each attempt, since the connection may be a new one. */
  constructor(clientOf: () => HostClient, clock: Clock, fence?: HostFence) {
    this.#clientOf = clientOf;
    this.#clock = clock;
    this.#fence = fence;
  }

  get #client(): HostClient {
    return this.#clientOf();
  }

  create(record: SandboxRecord, context: CallContext): Promise<Machine> {
    const request = { spec: specOf(record) };
    const call = (o: CallOptions) => this.#client.createMachine(request, o);
    return this.#machine(record.id, context, call, gatewayLimits.hostCreateMs);
  }

  /** `group`: id of the forks that are clones of one instant; else empty. */
  fork(record: SandboxRecord, group: string, context: CallContext): Promise<Machine> {
    const request = { sourceSandboxId: record.sourceSandboxId, spec: specOf(record), group };
    const call = (o: CallOptions) => this.#client.forkMachine(request, o);
    return this.#machine(record.id, context, call, gatewayLimits.hostForkMs);
  }

  async endForkGroup(group: string, context: CallContext): Promise<void> {
    const call = (o: CallOptions) => this.#client.endForkGroup({ group }, o);
    await this.#retry(context, call, gatewayLimits.hostQueryMs);
  }

  suspend(sandboxId: string, diskOnly: boolean, context: CallContext): Promise<Machine> {
    const call = (o: CallOptions) => this.#client.suspendMachine({ sandboxId, diskOnly }, o);
    return this.#machine(sandboxId, context, call, gatewayLimits.hostSuspendMs);
  }

  resume(sandboxId: string, context: CallContext): Promise<Machine> {
    const call = (o: CallOptions) => this.#client.resumeMachine({ sandboxId }, o);
    return this.#machine(sandboxId, context, call, gatewayLimits.hostResumeMs);
  }

  /** Imports the stored image as a suspended machine. Repeatable: an existing machine is returned as it is. */
  import(record: SandboxRecord, imageKey: string, context: CallContext): Promise<Machine> {
    const request = { spec: specOf(record), imageKey };
    const call = (o: CallOptions) => this.#client.importMachine(request, o);
    return this.#machine(record.id, context, call, gatewayLimits.hostImportMs);
  }

  async destroy(sandboxId: string, context: CallContext): Promise<void> {
    await this.#retry(
      context,
      (o) => this.#client.destroyMachine({ sandboxId }, o),
      gatewayLimits.hostDestroyMs,
    );
  }

  /** Undefined: the host has no such machine. */
  async find(sandboxId: string, context: CallContext): Promise<Machine | undefined> {
    try {
      const call = (o: CallOptions) => this.#client.getMachine({ sandboxId }, o);
      return await this.#machine(sandboxId, context, call, gatewayLimits.hostQueryMs);
    } catch (error) {
      if (error instanceof HostError && error.code === "not_found") return undefined;
      throw error;
    }
  }

  async list(context: CallContext): Promise<Machine[]> {
    const answer = await this.#retry(
      context,
      (o) => this.#client.listMachines({}, o),
      gatewayLimits.hostQueryMs,
    );
    const nowMs = this.#clock.nowMs();
    return answer.machines
      .map((one) => reportedMachine(one, nowMs))
      .filter((one): one is Machine => one !== undefined);
  }

  /** Tells a host that was lost which machines are still its own. */
  async admit(sandboxIds: string[], context: CallContext): Promise<void> {
    const call = (o: CallOptions) => this.#client.admitMachines({ sandboxIds }, o);
    await this.#retry(context, call, gatewayLimits.hostDestroyMs);
  }

  async update(
    sandboxId: string,
    change: { idleSuspendSeconds?: number; name?: string; egress?: Egress & { revision: number } },
    context: CallContext,
  ): Promise<void> {
    await this.#retry(
      context,
      (o) => this.#client.updateMachine({ sandboxId, ...change }, o),
      gatewayLimits.hostQueryMs,
    );
  }

  async setVerificationKeys(issuer: string, keys: VerificationKey[], context: CallContext): Promise<void> {
    const request = { issuer, keys: keys.map(({ kid, jwk }) => ({ kid, jwkJson: JSON.stringify(jwk) })) };
    await this.#retry(
      context,
      (o) => this.#client.setVerificationKeys(request, o),
      gatewayLimits.hostQueryMs,
    );
  }

  /** Repeatable with the same id: takes one checkpoint. */
  checkpointMachine(
    request: { sandboxId: string; checkpointId: string; name: string },
    context: CallContext,
  ): Promise<HostCheckpoint> {
    const call = (o: CallOptions) => this.#client.checkpointMachine(request, o);
    return this.#retry(context, call, gatewayLimits.hostCheckpointMs);
  }

  /** One page, newest first. */
  async checkpoints(
    query: { teamId: string; sandboxId: string; limit: number; pageToken: string },
    context: CallContext,
  ): Promise<{ checkpoints: HostCheckpoint[]; nextPageToken: string }> {
    return await this.#retry(
      context,
      (o) => this.#client.listCheckpoints(query, o),
      gatewayLimits.hostQueryMs,
    );
  }

  /** The team's checkpoint of that id; undefined: it has none. */
  async checkpoint(teamId: string, id: string, context: CallContext): Promise<HostCheckpoint | undefined> {
    const answer = await this.#retry(
      context,
      (o) => this.#client.listCheckpoints({ teamId, id, limit: 1 }, o),
      gatewayLimits.hostQueryMs,
    );
    return answer.checkpoints[0];
  }

  async deleteCheckpoint(teamId: string, id: string, context: CallContext): Promise<number> {
    const answer = await this.#retry(
      context,
      (o) => this.#client.deleteCheckpoint({ teamId, id }, o),
      gatewayLimits.hostDestroyMs,
    );
    return answer.freedBytes;
  }

  async egress(sandboxId: string, context: CallContext): Promise<MachineEgress> {
    return await this.#retry(
      context,
      (o) => this.#client.getMachineEgress({ sandboxId }, o),
      gatewayLimits.hostQueryMs,
    );
  }

  /** Undefined: the host has no machine of the sandbox. */
  async metrics(sandboxId: string, context: CallContext): Promise<MachineMetrics | undefined> {
    const call = (o: CallOptions) => this.#client.getMachineMetrics({ sandboxId }, o);
    return await this.#retry(context, call, gatewayLimits.hostQueryMs).catch((error: unknown) => {
      if (error instanceof HostError && error.code === "not_found") return undefined;
      throw error;
    });
  }

  info(context: CallContext): Promise<HostInfo> {
    return this.#retry(context, (o) => this.#client.getHostInfo({}, o), gatewayLimits.hostQueryMs);
  }

  /** The stream of machine events, without deadline. */
  watch(signal: AbortSignal): ReturnType<HostClient["watchMachines"]> {
    return this.#client.watchMachines({}, { signal, headers: this.#headers({ signal, requestId: "" }) });
  }

  async #machine(
    sandboxId: string,
    context: CallContext,
    call: (options: CallOptions) => Promise<Machine>,
    timeoutMs: number,
  ): Promise<Machine> {
    const machine = reportedMachine(await this.#retry(context, call, timeoutMs), this.#clock.nowMs());
    if (machine?.sandboxId !== sandboxId)
      throw new HostError("internal", "the host answered with another machine");
    return machine;
  }

  async #retry<T>(
    context: CallContext,
    call: (options: CallOptions) => Promise<T>,
    timeoutMs: number,
  ): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await call({ signal: context.signal, timeoutMs, headers: this.#headers(context) });
      } catch (thrown) {
        context.signal.throwIfAborted();
        const error = hostErrorFrom(thrown);
        if (!error.isPassing || attempt >= gatewayLimits.hostAttempts) throw error;
        if (error.code === "aborted") await this.#fence?.refused();
        await this.#clock.sleep(gatewayLimits.hostRetryMs * 2 ** (attempt - 1), context.signal);
      }
    }
  }

  #headers({ requestId, fence }: CallContext): Record<string, string> {
    const { traceparent } = requestIds();
    return {
      [internalHeaders.requestId]: requestId,
      ...(traceparent !== "" && { [traceparentHeader]: traceparent }),
      ...(this.#fence && { [internalHeaders.hostGeneration]: String(this.#fence.generation()) }),
      ...(this.#fence && fence && { [internalHeaders.operation]: fenceText(fence) }),
    };
  }
}

/** Our codes are the wire names of Connect's; three of Connect's are not used, and become `internal`. */
function hostErrorFrom(thrown: unknown): HostError {
  const error = ConnectError.from(thrown, Code.Unavailable);
  const name = Code[error.code].replaceAll(/(?<=[a-z])[A-Z]/g, "_$&").toLowerCase() as ErrorCode;
  const code = errorCodes.includes(name) ? name : "internal";
  const message = reportedMessage(error.rawMessage) || "the host gave no reason";
  return new HostError(code, message, { cause: thrown });
}

const specOf = (record: SandboxRecord) => ({
  ...machineFields(record),
  sandboxId: record.id,
  checkpointId: record.sourceCheckpointId,
  egress: egressOf(record),
});

/** `revision` is the record's generation, which grows with every write, so the host knows the newer policy. */
export const egressOf = ({ egress, generation }: SandboxRecord) => ({ ...egress, revision: generation });
