import type { ExecResponse, RestoreResponse, SandboxState } from "@cloche/protocol";
import { Checkpoints } from "./checkpoints.ts";
import { DataPlane } from "./data-plane.ts";
import { ClocheSdkError, ClocheWaitError } from "./errors.ts";
import {
  exec,
  type ExecBytesEvent,
  type ExecBytesOptions,
  type ExecEvent,
  type ExecOptions,
} from "./exec.ts";
import { Files } from "./files.ts";
import { type Gateway, isNotFound, type SuspendOptions } from "./gateway.ts";
import type {
  ForkSandboxRequest,
  PortLink,
  SandboxEgress,
  SandboxInfo,
  SandboxMetrics,
  SandboxWithToken,
  UpdateSandboxRequest,
} from "./gateway-types.ts";
import type { PortConnection } from "./port-connection.ts";
import { Processes } from "./processes.ts";
import { requireRuntime } from "./runtime.ts";
import { isLoopback } from "./service-address.ts";
import { Services } from "./services.ts";
import { Store } from "./store.ts";
import { TokenSource, type DataPlaneToken, type IssueToken } from "./token-source.ts";
import type { Fetch } from "./fetch.ts";
import { sleep, type CallOptions } from "./transport.ts";
import type { OpenWebSocket } from "./web-socket.ts";

const running: SandboxState = "SANDBOX_STATE_RUNNING";
const waitDefaultMs = 120_000;
const pollFirstMs = 50;
const pollMostMs = 1_000;

/** Settings of a client's connections to sandboxes. */
export interface DataPlaneSettings {
  /** Sends every request. */
  fetch: Fetch;
  /** Default: the platform's WebSocket. */
  webSocket?: OpenWebSocket | undefined;
  /** Store values other than JSON objects as `{"v": value}`. */
  wrapStoreValues: boolean;
  /** Use an address on this machine's loopback, if the service names one, instead of the sandbox's domain. */
  plainLoopback?: boolean;
}

/** The data plane of a sandbox, which needs only its domain and tokens: for browsers and programs without an API key. */
export class SandboxDataPlane {
  /** Files and directories. */
  readonly files: Files;
  /** Checkpoints of the disk. */
  readonly checkpoints: Checkpoints;
  /** Programs that outlive the call that started them, and terminals. */
  readonly processes: Processes;
  /** Supervised background services. */
  readonly services: Services;
  /** A JSON key-value store on the sandbox's disk. */
  readonly store: Store;
  /** For routes without an SDK method. */
  readonly dataPlane: DataPlane;

  constructor(dataPlane: DataPlane, settings: DataPlaneSettings) {
    this.dataPlane = dataPlane;
    this.files = new Files(dataPlane);
    this.checkpoints = new Checkpoints(dataPlane);
    this.processes = new Processes(dataPlane);
    this.services = new Services(dataPlane);
    this.store = new Store(dataPlane, settings.wrapStoreValues);
  }

  /**
   * Runs a command and answers when it has ended. There is no shell: `cmd` is a program and its arguments. A non-zero `exit_code` is an
   * answer, not an error. Aborting `signal` kills the command. No time limit unless `timeout_ms` is given.
   */
  exec(cmd: readonly string[], options: ExecOptions = {}): Promise<ExecResponse> {
    return exec(this.dataPlane, cmd, options);
  }

  /** Runs a command and yields its output while it runs, at the end one `exit`. Leaving the loop early kills the command. */
  async *execStream(cmd: readonly string[], options: ExecOptions = {}): AsyncGenerator<ExecEvent, void> {
    const { execStream } = await import("./exec-stream.ts");
    yield* execStream(this.dataPlane, cmd, options);
  }

  /**
   * As `execStream`, with input and output as bytes. `stdin` may come in pieces while the command runs; the command's end does not wait for
   * it.
   */
  async *execStreamBytes(
    cmd: readonly string[],
    options: ExecBytesOptions = {},
  ): AsyncGenerator<ExecBytesEvent, void> {
    const { execStreamBytes } = await import("./exec-stream.ts");
    yield* execStreamBytes(this.dataPlane, cmd, options);
  }

  /** A TCP connection to a server on the sandbox's loopback, for protocols other than HTTP. Throws naming the port if no server listens. */
  async connectPort(port: number, options: CallOptions = {}): Promise<PortConnection> {
    // Loaded on first use, because few programs need it.
    const { PortConnection } = await import("./port-connection.ts");
    return PortConnection.open(this.dataPlane, port, options);
  }

  /** Rewinds the sandbox to a checkpoint, in place. */
  restore(checkpointId: string, options: CallOptions = {}): Promise<RestoreResponse> {
    return this.checkpoints.restore(checkpointId, options);
  }
}

/**
 * Opens a sandbox's data plane without a gateway. `token` is called for the first token and before a token expires; a backend typically
 * answers it with IssueDataPlaneToken.
 */
export function openDataPlane(settings: {
  domain: string;
  token: IssueToken;
  fetch?: Fetch;
  webSocket?: OpenWebSocket;
  wrapStoreValues?: boolean;
}): SandboxDataPlane {
  requireRuntime();
  const fetch = settings.fetch ?? ((url, init) => globalThis.fetch(url, init));
  const tokens = new TokenSource(settings.token, undefined);
  const address = (): Promise<string> => Promise.resolve(`https://${settings.domain}`);
  const dataPlane = new DataPlane(fetch, tokens, address, settings.webSocket);
  return new SandboxDataPlane(dataPlane, { fetch, wrapStoreValues: settings.wrapStoreValues ?? false });
}

/** A sandbox of the team: its lifecycle and its data plane. */
export class Sandbox extends SandboxDataPlane {
  readonly #gateway: Gateway;
  readonly #settings: DataPlaneSettings;
  readonly #tokens: TokenSource;
  #info: SandboxInfo;

  constructor(gateway: Gateway, settings: DataPlaneSettings, info: SandboxInfo, token?: DataPlaneToken) {
    const tokens = new TokenSource((options) => gateway.issueDataPlaneToken(info.id, options), token);
    super(
      new DataPlane(settings.fetch, tokens, (options) => this.#address(options), settings.webSocket),
      settings,
    );
    this.#gateway = gateway;
    this.#settings = settings;
    this.#tokens = tokens;
    this.#info = info;
  }

  /** Made from the answer of CreateSandbox or ForkSandbox. */
  static withToken(gateway: Gateway, settings: DataPlaneSettings, answer: SandboxWithToken): Sandbox {
    const token: DataPlaneToken = {
      jwt: answer.data_plane_token,
      expires_at_unix: answer.data_plane_token_expires_at_unix,
      ...(answer.data_plane_url !== undefined && { data_plane_url: answer.data_plane_url }),
    };
    return new Sandbox(gateway, settings, answer.sandbox, token.jwt === "" ? undefined : token);
  }

  /** `sbx-` and 20 characters. */
  get id(): string {
    return this.#info.id;
  }
  /** The last known record; `refresh` reads it again. */
  get info(): SandboxInfo {
    return this.#info;
  }
  /** `<id>.<base domain>`, with the port unless that is 443; empty until the sandbox first ran. */
  get domain(): string {
    return this.#info.domain;
  }

  /** Reads the record from the gateway. `not_found` once the sandbox is deleted. */
  async refresh(options: CallOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#gateway.getSandbox(this.id, options);
    return this.#info;
  }

  /** A data plane token that is valid for at least 30 seconds. */
  token(options: CallOptions = {}): Promise<string> {
    return this.#tokens.get(options);
  }

  /** Suspends the sandbox; with `memory: false` only the disk is saved. Answers at once; `waitFor("SANDBOX_STATE_SUSPENDED")` waits. */
  async suspend(options: SuspendOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#gateway.suspendSandbox(this.id, options);
    return this.#info;
  }
  /** Resumes the sandbox. Answers at once; `waitFor("SANDBOX_STATE_RUNNING")` waits. */
  async resume(options: CallOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#gateway.resumeSandbox(this.id, options);
    return this.#info;
  }
  /** Makes a clone of the present memory and disk, or of the disk of `checkpoint_id`. Answers when the clone runs, or after 10 s. */
  async fork(
    request: Omit<ForkSandboxRequest, "source_sandbox_id" | "count"> = {},
    options: CallOptions = {},
  ): Promise<Sandbox> {
    const answer = await this.#gateway.forkSandbox({ ...request, source_sandbox_id: this.id }, options);
    return Sandbox.withToken(this.#gateway, this.#settings, answer);
  }
  /** Makes `count` (1 to 100) clones of one instant, all or none. With a `name` they are called `name-1`, `name-2`, … */
  async forkMany(
    count: number,
    request: Omit<ForkSandboxRequest, "source_sandbox_id" | "count"> = {},
    options: CallOptions = {},
  ): Promise<Sandbox[]> {
    const message = { ...request, count, source_sandbox_id: this.id };
    const answer = await this.#gateway.forkSandbox(message, options);
    return answer.sandboxes.map((sandbox, index) =>
      Sandbox.withToken(this.#gateway, this.#settings, {
        ...answer,
        sandbox,
        data_plane_token: answer.data_plane_tokens[index] ?? "",
      }),
    );
  }
  /** Changes the given fields; the others stay. */
  async update(request: Omit<UpdateSandboxRequest, "id">, options: CallOptions = {}): Promise<SandboxInfo> {
    this.#info = await this.#gateway.updateSandbox({ ...request, id: this.id }, options);
    return this.#info;
  }
  /** Ends the sandbox for good, in any state; its checkpoints stay. Answers once the deletion is durable. */
  delete(options: CallOptions = {}): Promise<void> {
    return this.#gateway.deleteSandbox(this.id, options);
  }

  /** `await using sandbox = await cloche.create()` deletes it at the end of the block. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.delete().catch((error: unknown) => {
      if (!isNotFound(error)) throw error;
    });
  }

  /**
   * Polls until the sandbox is in one of `states`, for up to `timeoutMs` (default 120,000). Throws ClocheWaitError when the time is over,
   * when the sandbox is in ERROR or deleted, or when a suspend or resume failed and was undone.
   */
  async waitFor(
    states: SandboxState | readonly SandboxState[],
    options: CallOptions & { timeoutMs?: number } = {},
  ): Promise<SandboxInfo> {
    const wanted = typeof states === "string" ? [states] : states;
    const { signal, timeoutMs = waitDefaultMs } = options;
    const endMs = Date.now() + timeoutMs;
    const before = this.#info.state;
    for (let waitMs = pollFirstMs; ; waitMs = Math.min(waitMs * 1.5, pollMostMs)) {
      const info = await this.#gone(this.refresh({ signal }));
      if (wanted.includes(info.state)) return info;
      const fellBack = before.endsWith("ING") && before !== running && isAtRest(info.state);
      if (info.state === "SANDBOX_STATE_ERROR" || fellBack) throw this.#stuck(wanted);
      if (Date.now() + waitMs > endMs) throw this.#stuck(wanted, ` after ${timeoutMs} ms`, "wait_timeout");
      await sleep(waitMs, signal);
    }
  }

  /** Waits until the sandbox is deleted for good. */
  async waitUntilDeleted(options: CallOptions & { timeoutMs?: number } = {}): Promise<void> {
    const { signal, timeoutMs = waitDefaultMs } = options;
    const endMs = Date.now() + timeoutMs;
    for (let waitMs = pollFirstMs; ; waitMs = Math.min(waitMs * 1.5, pollMostMs)) {
      try {
        await this.refresh({ signal });
      } catch (error) {
        if (isNotFound(error)) return;
        throw error;
      }
      if (Date.now() + waitMs > endMs)
        throw new ClocheWaitError(`sandbox ${this.id} is still there after ${timeoutMs} ms`, {
          code: "wait_timeout",
        });
      await sleep(waitMs, signal);
    }
  }

  async #gone(refreshed: Promise<SandboxInfo>): Promise<SandboxInfo> {
    try {
      return await refreshed;
    } catch (error) {
      if (isNotFound(error)) throw new ClocheWaitError(`sandbox ${this.id} was deleted`, { cause: error });
      throw error;
    }
  }

  #stuck(
    wanted: readonly SandboxState[],
    when = "",
    code: ClocheWaitError["code"] = "wait_failed",
  ): ClocheWaitError {
    const { state, error_message: why } = this.#info;
    return new ClocheWaitError(
      `sandbox ${this.id} is ${state}${when}, not ${wanted.join(" or ")}${why === "" ? "" : `: ${why}`}`,
      { code },
    );
  }

  /** The URL of a server on `port` in the sandbox, for requests with the sandbox's token or, if the port is public, without. */
  portUrl(port: number): string {
    if (this.domain === "") throw new ClocheSdkError("the sandbox has no domain until it first runs");
    return `https://${port}-${this.domain}`;
  }
  /** A link that opens the port in a browser, valid for one use within a minute. */
  portLink(port: number, options: CallOptions & { path?: string } = {}): Promise<PortLink> {
    const { path, signal } = options;
    const request = { sandbox_id: this.id, port, ...(path === undefined ? {} : { path }) };
    return this.#gateway.issuePortLink(request, { signal });
  }

  /** The network policy, and the denials since the last start; `update({ egress })` changes the policy. */
  egress(options: CallOptions = {}): Promise<SandboxEgress> {
    return this.#gateway.getSandboxEgress(this.id, options);
  }

  /** The resources used now and in the last hour. Does not wake the sandbox. */
  metrics(options: CallOptions = {}): Promise<SandboxMetrics> {
    return this.#gateway.getSandboxMetrics(this.id, options);
  }

  /** The sandbox's address, which exists from its first run on. */
  async #address(options: CallOptions): Promise<string> {
    if (this.#info.domain === "") await this.refresh(options);
    if (this.#info.domain === "") await this.waitFor(running, options);
    const plain = this.#tokens.latest?.data_plane_url;
    return this.#settings.plainLoopback === true && plain?.startsWith("http://") && isLoopback(plain)
      ? `${plain}/sandboxes/${this.id}`
      : `https://${this.#info.domain}`;
  }
}

const isAtRest = (state: SandboxState): boolean => state === running || state === "SANDBOX_STATE_SUSPENDED";
