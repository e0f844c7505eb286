// Calls of the host to an agent: GuestService of guest.proto as Connect unary JSON, authorised by the control secret.
// One connection a call: a memory snapshot resets what is kept open.
import { request } from "node:http";
import { requestIds, step } from "@cloche/base";
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

export interface AgentAddress {
  agentHost: string;
  agentPort: number;
}

const ANSWER_BYTES_MAX = 4 * 1024 * 1024;
/** Services may take their health timeout each; stopping one takes up to ten seconds. */
const SLOW_MS = 300_000;
const QUICK_MS = 10_000;
/** Flushing writes what is dirty: at disk speed, with a full page cache. */
const FLUSH_MS = 120_000;

export class GuestClient {
  readonly #address: AgentAddress;
  readonly #secret: string;
  readonly #keepAwake: (() => Promise<() => void>) | undefined;

  /** `keepAwake`: called before each call, its answer after it; absent where the machine cannot doze. */
  constructor(address: AgentAddress, secret: string, keepAwake?: () => Promise<() => void>) {
    this.#address = address;
    this.#secret = secret;
    this.#keepAwake = keepAwake;
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
    // An agent out of an older memory image does not say what runs: that is no reason to take it for idle.
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
    return this.#call("Shutdown", {}, SLOW_MS, {});
  }

  /** Fields that the JSON leaves out have their zero value, given in `zero`. */
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

  #send<T>(method: string, body: unknown, deadlineMs: number, zero: T): Promise<T> {
    const { requestId, traceparent } = requestIds();
    const text = JSON.stringify(body);
    return new Promise((resolve, reject) => {
      const fail = (why: string, cause?: unknown): void =>
        reject(new ClocheError("unavailable", `the sandbox's agent ${why}`, { cause }));
      const call = request(
        {
          host: this.#address.agentHost,
          port: this.#address.agentPort,
          method: "POST",
          path: `/cloche.guest.v1.GuestService/${method}`,
          agent: false,
          headers: {
            "content-type": "application/json",
            "content-length": Buffer.byteLength(text),
            authorization: `Bearer ${this.#secret}`,
            connection: "close",
            ...(requestId !== "" && { [internalHeaders.requestId]: requestId }),
            ...(traceparent !== "" && { [traceparentHeader]: traceparent }),
          },
        },
        (response) => {
          const chunks: Buffer[] = [];
          let size = 0;
          response.on("data", (chunk: Buffer) => {
            size += chunk.length;
            if (size > ANSWER_BYTES_MAX) call.destroy(new Error("answer too long"));
            else chunks.push(chunk);
          });
          response.on("end", () => {
            clearTimeout(deadline);
            const answer = parse(Buffer.concat(chunks).toString("utf8"));
            if (answer === undefined) return fail("answered no JSON object");
            if (response.statusCode === 200) return resolve({ ...zero, ...answer });
            reject(errorFrom(method, answer, response.statusCode));
          });
        },
      );
      const deadline = setTimeout(
        () => call.destroy(new Error(`${method}: no answer in ${deadlineMs} ms`)),
        deadlineMs,
      );
      call.on("error", (error) => {
        clearTimeout(deadline);
        fail("does not answer", error);
      });
      call.end(text);
    });
  }
}

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
  // The guest is not trusted with our answers: what it says of itself becomes ours only in a bounded form.
  // A full disk inside is one for our caller too (507), not a quota (429).
  return new ClocheError(code, message.slice(0, 1_000), status === 507 ? { resource: "disk" } : {});
}
