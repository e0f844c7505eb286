// Calls of the host to an agent: GuestService of guest.proto as Connect unary JSON, authorised by the control secret, through the
// channel, whose key is derived from that secret (base's agent-channel.ts).
// One connection for each call, because a memory snapshot resets open connections.
import { request } from "node:http";
import type { Duplex } from "node:stream";
import { channelKeyOf, connectToAgent, isForeignAgent, isKeyNotTaken, requestIds, step } from "@cloche/base";
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
  GuestKeySetJson,
  PrepareCheckpointResponseJson,
  PrepareRequestJson,
  PrepareSnapshotResponseJson,
} from "@cloche/protocol/guest";
import { type WholeAnswer, wholeAnswer } from "./whole-answer.ts";

export interface AgentAddress {
  agentHost: string;
  agentPort: number;
  /** Absent: the agent is older than the channel and is called over plain HTTP. */
  channel?: 1;
}

/** Limit of answers that name paths or services. Quick calls have small answers, because many may be under way at once. */
const ANSWER_BYTES_MAX = 4 * 1024 * 1024;
const QUICK_ANSWER_BYTES_MAX = 64 * 1024;
/** Each service may take its health timeout to start, and up to ten seconds to stop. */
const SLOW_MS = 300_000;
const QUICK_MS = 10_000;
/** Each service gets ten seconds, dependent services one after the other. Services still running are killed with the machine. */
const SHUTDOWN_MS = 60_000;
/** A flush may have to write a full page cache at disk speed. */
const FLUSH_MS = 120_000;

export class AgentClient {
  readonly #address: AgentAddress;
  readonly #secret: string;
  readonly #keepAwake: (() => Promise<() => void>) | undefined;
  readonly #cut: AbortSignal | undefined;

  /**
   * `keepAwake`: called before each call, its result after the call; absent: the machine is not kept awake. `cut`: when aborted, calls
   * under way and later calls fail with its reason.
   */
  constructor(
    address: AgentAddress,
    secret: string,
    keepAwake?: () => Promise<() => void>,
    cut?: AbortSignal,
  ) {
    this.#address = address;
    this.#secret = secret;
    this.#keepAwake = keepAwake;
    this.#cut = cut;
  }

  prepare(body: PrepareRequestJson): Promise<object> {
    return this.#call("Prepare", body, QUICK_MS, {});
  }
  assign(body: AssignRequestJson): Promise<Required<AssignResponseJson>> {
    return this.#call("Assign", body, SLOW_MS, { agentVersion: "", startedServices: [], failedServices: [] });
  }
  setVerificationKeys(body: GuestKeySetJson): Promise<object> {
    return this.#call("SetVerificationKeys", body, QUICK_MS, {});
  }
  getActivity(): Promise<Required<ActivityResponseJson>> {
    const nothing = { lastActivityUnixMs: 0, runningExecs: 0, openRequests: 0, cpuMs: 0 };
    // An agent from an older memory image does not report these: do not take it for idle.
    const unknown = { processes: 1, activeServices: 1 };
    return this.#call("GetActivity", {}, QUICK_MS, { ...nothing, ...unknown });
  }
  prepareCheckpoint(): Promise<Required<PrepareCheckpointResponseJson>> {
    return this.#call("PrepareCheckpoint", {}, FLUSH_MS, { runningServices: [] });
  }
  prepareSnapshot(): Promise<Required<PrepareSnapshotResponseJson>> {
    const none = { blockingPaths: [], deletedBytes: 0, deletedPaths: [] };
    return this.#call("PrepareSnapshot", {}, FLUSH_MS, none);
  }
  detachDisk(): Promise<Required<DetachDiskResponseJson>> {
    return this.#call("DetachDisk", {}, SLOW_MS, { runningServices: [] });
  }
  attachDisk(body: AttachDiskRequestJson): Promise<Required<AttachDiskResponseJson>> {
    return this.#call("AttachDisk", body, SLOW_MS, { startedServices: [], failedServices: [] });
  }
  shutdown(): Promise<object> {
    return this.#call("Shutdown", {}, SHUTDOWN_MS, {});
  }

  /** `zero`: the values of fields that the JSON leaves out. */
  #call<T>(method: string, body: unknown, deadlineMs: number, zero: T): Promise<T> {
    return step(`agent ${method}`, async () => {
      const release = await this.#keepAwake?.();
      try {
        return await this.#send(method, body, deadlineMs, zero);
      } finally {
        release?.();
      }
    });
  }

  async #send<T>(method: string, body: unknown, deadlineMs: number, zero: T): Promise<T> {
    const text = JSON.stringify(body);
    const { status, text: said } = await this.#post(method, text, deadlineMs).catch((cause: unknown) => {
      // The listener has another secret, or none: treat it like a refusal of this secret.
      if (isForeignAgent(cause)) throw foreign(cause);
      throw new ClocheError("unavailable", "the sandbox's agent does not answer", { cause });
    });
    const answer = parse(said);
    if (answer === undefined)
      throw new ClocheError("unavailable", "the sandbox's agent answered no JSON object");
    if (status === 200) return { ...zero, ...answer };
    throw errorFrom(method, answer, status);
  }

  /** Posts once more if the agent's clock was set within the handshake, which happens once. */
  #post(method: string, text: string, deadlineMs: number): Promise<WholeAnswer> {
    return this.#postOnce(method, text, deadlineMs).catch((error: unknown) => {
      if (!isKeyNotTaken(error)) throw error;
      return this.#postOnce(method, text, deadlineMs);
    });
  }

  #postOnce(method: string, text: string, deadlineMs: number): Promise<WholeAnswer> {
    const { requestId, traceparent } = requestIds();
    const { agentHost: host, agentPort: port, channel } = this.#address;
    const connect = (): Duplex => connectToAgent({ host, port, key: channelKeyOf(this.#secret) });
    const call = request({
      host,
      port,
      ...(channel === 1 ? { createConnection: connect } : { agent: false }),
      method: "POST",
      path: `/cloche.guest.v1.GuestService/${method}`,
      headers: {
        "content-type": "application/json",
        "content-length": Buffer.byteLength(text),
        authorization: `Bearer ${this.#secret}`,
        connection: "close",
        ...(requestId !== "" && { [internalHeaders.requestId]: requestId }),
        ...(traceparent !== "" && { [traceparentHeader]: traceparent }),
      },
    });
    return wholeAnswer(call, text, { deadlineMs, bytes: answerBytesMax(deadlineMs), signal: this.#cut });
  }
}

const answerBytesMax = (deadlineMs: number): number =>
  deadlineMs === QUICK_MS ? QUICK_ANSWER_BYTES_MAX : ANSWER_BYTES_MAX;

const foreign = (cause: unknown): ClocheError =>
  new ClocheError("unauthenticated", "the sandbox's agent does not have the key of this machine's channel", {
    cause,
  });

function parse(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
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
