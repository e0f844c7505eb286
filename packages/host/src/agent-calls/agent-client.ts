/**
 * Calls of the host to an agent: GuestService of guest.proto as Connect unary JSON, authorised by the control secret, through the
 * channel, whose key is derived from that secret (base's agent-channel.ts).
 * Calls go over a kept connection (agent-connections.ts) where the caller has some.
 */
import { type ClientRequest, type ClientRequestArgs, request } from "node:http";
import {
  channelKeyOf,
  connectToAgent,
  isForeignAgent,
  isKeyNotTaken,
  parseJson,
  requestIds,
  step,
} from "@cloche/base";
import {
  ClocheError,
  type ErrorCode,
  errorCodes,
  internalHeaders,
  traceparentHeader,
} from "@cloche/protocol";
import type {
  ActivityResponseJson,
  AssignRequestJson,
  AssignResponseJson,
  AttachDiskRequestJson,
  AttachDiskResponseJson,
  DetachDiskResponseJson,
  PrepareCheckpointRequestJson,
  PrepareCheckpointResponseJson,
  PrepareRequestJson,
  PrepareSnapshotResponseJson,
} from "@cloche/protocol/guest";
import type { AgentConnections, AgentEnd } from "./agent-connections.ts";
import { fieldsOf } from "./answer-fields.ts";
import { TooLateError, type WholeAnswer, wholeAnswer } from "./whole-answer.ts";

export interface AgentAddress {
  agentHost: string;
  agentPort: number;
}

/** Limit of answers that name paths or services. Quick calls have small answers, because many may be under way at once. */
const maxAnswerBytes = 4 * 1024 * 1024;
const quickAnswerBytesMax = 64 * 1024;
/** Limit of the values in an answer's JSON. */
const answerValuesMax = 10_000;
/** Each service may take its health timeout to start, and up to ten seconds to stop. */
const slowMs = 300_000;
const quickMs = 10_000;
/** Each service gets ten seconds, dependent services one after the other. Services still running are killed with the machine. */
const shutdownMs = 60_000;
/** A flush may have to write a full page cache at disk speed. */
const flushMs = 120_000;

/** How calls of one methods are sent. */
const methods = {
  Prepare: { deadlineMs: quickMs },
  // The connection belongs to the former secret.
  Assign: { deadlineMs: slowMs, isLast: true },
  GetActivity: { deadlineMs: quickMs, isRepeatable: true },
  PrepareCheckpoint: { deadlineMs: flushMs, isRepeatable: true },
  PrepareSnapshot: { deadlineMs: flushMs, isRepeatable: true },
  // The second finds the disk detached and names no services. Nobody reads the names: restores have those of PrepareCheckpoint.
  DetachDisk: { deadlineMs: slowMs, isRepeatable: true },
  AttachDisk: { deadlineMs: slowMs },
  Shutdown: { deadlineMs: shutdownMs, isLast: true },
} as const satisfies Record<string, Sending>;

interface Sending {
  deadlineMs: number;
  /** Sent once more if a kept connection breaks under it. */
  isRepeatable?: true;
  /** Its connection is not kept. */
  isLast?: true;
}

export interface AgentClientOptions {
  /** Called before each call, its result after the call; absent: the machine is not kept awake. */
  keepAwake?: () => Promise<() => void>;
  /** When aborted, calls under way and later calls fail with its reason. */
  cut?: AbortSignal;
  /** Absent: a connection for each call. */
  connections?: AgentConnections;
}

export class AgentClient {
  readonly #address: AgentAddress;
  readonly #secret: string;
  readonly #options: AgentClientOptions;

  constructor(address: AgentAddress, secret: string, options: AgentClientOptions = {}) {
    this.#address = address;
    this.#secret = secret;
    this.#options = options;
  }

  prepare(body: PrepareRequestJson): Promise<object> {
    return this.#call("Prepare", body, {});
  }
  assign(body: AssignRequestJson): Promise<Required<AssignResponseJson>> {
    return this.#call("Assign", body, { agentVersion: "", startedServices: [], failedServices: [] });
  }
  getActivity(): Promise<Required<ActivityResponseJson>> {
    const nothing = { lastActivityUnixMs: 0, runningExecs: 0, openRequests: 0, cpuMs: 0 };
    // An agent from an older memory image does not report these: do not take it for idle.
    const unknown = { processes: 1, activeServices: 1 };
    return this.#call("GetActivity", {}, { ...nothing, ...unknown });
  }
  prepareCheckpoint(
    body: PrepareCheckpointRequestJson = {},
  ): Promise<Required<PrepareCheckpointResponseJson>> {
    return this.#call("PrepareCheckpoint", body, { runningServices: [] });
  }
  /** Also writes everything to the disk. */
  async prepareSnapshot(): Promise<Required<PrepareSnapshotResponseJson>> {
    const none = { blockingPaths: [], deletedBytes: 0, deletedPaths: [], flushed: false };
    const prepared = await this.#call("PrepareSnapshot", {}, none);
    // An agent out of an older memory image.
    if (!prepared.flushed) await this.prepareCheckpoint();
    return prepared;
  }
  detachDisk(): Promise<Required<DetachDiskResponseJson>> {
    return this.#call("DetachDisk", {}, { runningServices: [] });
  }
  attachDisk(body: AttachDiskRequestJson): Promise<Required<AttachDiskResponseJson>> {
    return this.#call("AttachDisk", body, { startedServices: [], failedServices: [] });
  }
  shutdown(): Promise<object> {
    return this.#call("Shutdown", {}, {});
  }

  /** `zero`: the values of fields that the JSON leaves out. */
  #call<T extends object>(method: keyof typeof methods, body: unknown, zero: T): Promise<T> {
    return step(`agent ${method}`, async () => {
      const release = await this.#options.keepAwake?.();
      try {
        return await this.#send(method, body, zero);
      } finally {
        release?.();
      }
    });
  }

  async #send<T extends object>(method: keyof typeof methods, body: unknown, zero: T): Promise<T> {
    const { status, text } = await this.#post(method, JSON.stringify(body)).catch((cause: unknown) => {
      // The listener has another secret, or none: treat it like a refusal of this secret.
      if (isForeignAgent(cause)) throw foreign(cause);
      throw new ClocheError("unavailable", "the sandbox's agent does not answer", { cause });
    });
    const answer = parse(text);
    if (answer === undefined)
      throw new ClocheError("unavailable", "the sandbox's agent answered no JSON object");
    if (status !== 200) throw errorFrom(method, answer, status);
    const fields = fieldsOf(answer, zero);
    if (fields === undefined)
      throw new ClocheError(
        "unavailable",
        `the sandbox's agent answered ${method} with a field of another type`,
      );
    return fields;
  }

  /** Posts once more if the agent's clock was set within the handshake, or if a kept connection broke under a repeatable call. */
  async #post(method: keyof typeof methods, text: string): Promise<WholeAnswer> {
    const sending: Sending = methods[method];
    const { connections, cut } = this.#options;
    const end = this.#end;
    if (sending.isRepeatable !== true) await connections?.check(end, cut);
    const first = this.#request(method, text);
    try {
      return await this.#whole(first, text, sending);
    } catch (error) {
      const isBroken = !(error instanceof TooLateError) && cut?.aborted !== true;
      const isStale = first.reusedSocket && sending.isRepeatable === true && isBroken;
      if (!isStale && !isKeyNotTaken(error)) throw error;
      connections?.close(end);
      return await this.#whole(this.#request(method, text), text, sending);
    }
  }

  #whole(call: ClientRequest, text: string, { deadlineMs, isLast }: Sending): Promise<WholeAnswer> {
    const { connections, cut } = this.#options;
    const keep = connections !== undefined && isLast !== true;
    return wholeAnswer(call, text, { deadlineMs, bytes: answerBytesMax(deadlineMs), keep, signal: cut });
  }

  #request(method: keyof typeof methods, text: string): ClientRequest {
    const { requestId, traceparent } = requestIds();
    const { isLast }: Sending = methods[method];
    return request({
      ...this.#way(),
      method: "POST",
      path: `/cloche.guest.v1.GuestService/${method}`,
      headers: {
        "content-type": "application/json",
        "content-length": Buffer.byteLength(text),
        authorization: `Bearer ${this.#secret}`,
        ...((this.#options.connections === undefined || isLast === true) && { connection: "close" }),
        ...(requestId !== "" && { [internalHeaders.requestId]: requestId }),
        ...(traceparent !== "" && { [traceparentHeader]: traceparent }),
      },
    });
  }

  get #end(): AgentEnd {
    const { agentHost: host, agentPort: port } = this.#address;
    return { host, port, key: channelKeyOf(this.#secret) };
  }

  #way(): ClientRequestArgs {
    const end = this.#end;
    const { host, port } = end;
    const { connections } = this.#options;
    return connections?.optionsFor(end) ?? { host, port, createConnection: () => connectToAgent(end) };
  }
}

const answerBytesMax = (deadlineMs: number): number =>
  deadlineMs === quickMs ? quickAnswerBytesMax : maxAnswerBytes;

const foreign = (cause: unknown): ClocheError =>
  new ClocheError("unauthenticated", "the sandbox's agent does not have the key of this machine's channel", {
    cause,
  });

function parse(text: string): Record<string, unknown> | undefined {
  try {
    const value = parseJson(Buffer.from(text), answerValuesMax);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

function errorFrom(method: string, answer: Record<string, unknown>, status = 500): ClocheError {
  const code = errorCodes.find((one) => one === answer["code"]) ?? ("internal" as ErrorCode);
  const message = typeof answer["message"] === "string" ? answer["message"] : `${method} failed`;
  // The guest is not trusted: only known codes and a bounded message become part of our answer.
  // A full disk inside (507) is a full disk for our caller too, and not a quota (429).
  return new ClocheError(code, message.slice(0, 1_000), status === 507 ? { resource: "disk" } : {});
}
