import type {
  ApiKey,
  AuditPage,
  CreateSandboxRequest,
  CreatedApiKey,
  ForkedSandboxes,
  ForkSandboxRequest,
  GetUsageRequest,
  GetUsageResponse,
  ListSandboxesRequest,
  ListSandboxesResponse,
  PortLink,
  SandboxEgress,
  SandboxInfo,
  SandboxMetrics,
  SandboxWithToken,
  TeamCheckpoint,
  UpdateSandboxRequest,
} from "./gateway-types.ts";
import { ClocheApiError, ClocheSdkError } from "./errors.ts";
import type { DataPlaneToken } from "./token-source.ts";
import type { Fetch } from "./fetch.ts";
import { send, type CallOptions } from "./transport.ts";

/** Options of a suspend. */
export type SuspendOptions = CallOptions & {
  /** Whether memory is saved too. Default true. */
  memory?: boolean | undefined;
  /** Answer when the sandbox is durable, or after 60 s in its present state. Refused on a single machine. Default false. */
  waitDurable?: boolean | undefined;
};

const sandboxService = "cloche.public.v1.SandboxService";
const apiKeyService = "cloche.public.v1.ApiKeyService";

/**
 * The gateway's methods, one to one, with the same field names. Use it only on a team's backend, because it holds the API key. Calls that
 * are safe to repeat are retried if no answer came; calls that create only with an `idempotency_key`.
 */
export class Gateway {
  readonly #url: string;
  readonly #apiKey: string;
  readonly #fetch: Fetch;

  constructor(url: string, apiKey: string, fetch: Fetch) {
    this.#url = url.replace(/\/+$/, "");
    this.#apiKey = apiKey;
    this.#fetch = fetch;
  }

  /** Answers when the sandbox is RUNNING, or after 10 s in its present state. */
  createSandbox(request: CreateSandboxRequest = {}, options: CallOptions = {}): Promise<SandboxWithToken> {
    return this.#make("CreateSandbox", request, options);
  }
  /** `not_found` if the team has no such sandbox. */
  async getSandbox(id: string, options: CallOptions = {}): Promise<SandboxInfo> {
    return (await this.#read<{ sandbox: SandboxInfo }>("GetSandbox", { id }, options)).sandbox;
  }
  /** One page of the team's sandboxes. */
  listSandboxes(
    request: ListSandboxesRequest = {},
    options: CallOptions = {},
  ): Promise<ListSandboxesResponse> {
    return this.#read("ListSandboxes", request, options);
  }
  /** All sandboxes, newest first; reads all pages. */
  async *allSandboxes(
    request: Omit<ListSandboxesRequest, "page_token"> = {},
    options: CallOptions = {},
  ): AsyncGenerator<SandboxInfo, void> {
    let pageToken = "";
    do {
      const page = await this.listSandboxes({ page_size: 200, ...request, page_token: pageToken }, options);
      yield* page.sandboxes;
      pageToken = page.next_page_token;
    } while (pageToken !== "");
  }
  /** Answers once the deletion is durable. Checkpoints of the sandbox stay. */
  async deleteSandbox(id: string, options: CallOptions = {}): Promise<void> {
    await this.#call("DeleteSandbox", { id }, options);
  }
  /** Answers at once with SUSPENDING; see `Sandbox.waitFor`. `memory: false` saves only the disk: a resume is then a cold start. */
  async suspendSandbox(id: string, options: SuspendOptions = {}): Promise<SandboxInfo> {
    const { memory, waitDurable, ...call } = options;
    const message = {
      id,
      ...(memory !== undefined && { memory }),
      ...(waitDurable !== undefined && { wait_durable: waitDurable }),
    };
    return (await this.#read<{ sandbox: SandboxInfo }>("SuspendSandbox", message, call)).sandbox;
  }
  /** Answers at once with RESUMING; see `Sandbox.waitFor`. */
  async resumeSandbox(id: string, options: CallOptions = {}): Promise<SandboxInfo> {
    return (await this.#read<{ sandbox: SandboxInfo }>("ResumeSandbox", { id }, options)).sandbox;
  }
  /** A clone of the running machine; with `checkpoint_id` a new machine on that checkpoint's disk. */
  forkSandbox(request: ForkSandboxRequest, options: CallOptions = {}): Promise<ForkedSandboxes> {
    return this.#make("ForkSandbox", request, options);
  }
  /** A token for one sandbox, in any state except DELETING and ERROR (`failed_precondition`). */
  issueDataPlaneToken(sandboxId: string, options: CallOptions = {}): Promise<DataPlaneToken> {
    return this.#read("IssueDataPlaneToken", { sandbox_id: sandboxId }, options);
  }
  /** Changes the given fields; the others stay. */
  async updateSandbox(request: UpdateSandboxRequest, options: CallOptions = {}): Promise<SandboxInfo> {
    const { metadata, public_ports, ...rest } = request;
    const message = {
      ...rest,
      ...(metadata === undefined ? {} : { metadata: { entries: metadata } }),
      ...(public_ports === undefined ? {} : { public_ports: { ports: public_ports } }),
    };
    return (await this.#read<{ sandbox: SandboxInfo }>("UpdateSandbox", message, options)).sandbox;
  }
  /** The team's checkpoints, also of deleted sandboxes. */
  async listCheckpoints(
    request: { sandbox_id?: string } = {},
    options: CallOptions = {},
  ): Promise<TeamCheckpoint[]> {
    const all: TeamCheckpoint[] = [];
    for (let token = ""; ; ) {
      const message = { ...request, ...(token !== "" && { page_token: token }) };
      const page = await this.#read<{ checkpoints: TeamCheckpoint[]; next_page_token?: string }>(
        "ListCheckpoints",
        message,
        options,
      );
      all.push(...page.checkpoints);
      token = page.next_page_token ?? "";
      if (token === "") return all;
    }
  }
  /** Removes a checkpoint from storage. */
  deleteCheckpoint(id: string, options: CallOptions = {}): Promise<{ freed_bytes: number }> {
    return this.#call("DeleteCheckpoint", { id }, options);
  }
  /** The time in which the team's sandboxes were RUNNING, with deleted ones. */
  getUsage(request: GetUsageRequest = {}, options: CallOptions = {}): Promise<GetUsageResponse> {
    return this.#read("GetUsage", request, options);
  }
  /** A link that opens a port of the sandbox in a browser. `path` defaults to `/`. */
  issuePortLink(
    request: { sandbox_id: string; port: number; path?: string },
    options: CallOptions = {},
  ): Promise<PortLink> {
    return this.#call("IssuePortLink", request, options);
  }
  /** The audit log of the team's sandboxes, checkpoints and keys. `page_size`: default 100, at most 1,000. */
  listAuditEntries(
    request: { subject?: string; page_size?: number; page_token?: string } = {},
    options: CallOptions = {},
  ): Promise<AuditPage> {
    return this.#read("ListAuditEntries", request, options);
  }
  /** The network policy of the sandbox and its denials. */
  getSandboxEgress(id: string, options: CallOptions = {}): Promise<SandboxEgress> {
    return this.#read("GetSandboxEgress", { id }, options);
  }
  /** The resources that the sandbox uses now and used in the last hour. Does not wake the sandbox. */
  getSandboxMetrics(id: string, options: CallOptions = {}): Promise<SandboxMetrics> {
    return this.#read("GetSandboxMetrics", { id }, options);
  }
  /** Makes a further API key of the team; `expires_in_seconds` 0: never. */
  createApiKey(
    request: { name: string; expires_in_seconds?: number },
    options: CallOptions = {},
  ): Promise<CreatedApiKey> {
    return this.#call("CreateApiKey", request, options, apiKeyService);
  }
  /** The team's keys, without their secrets. */
  async listApiKeys(options: CallOptions = {}): Promise<ApiKey[]> {
    const all: ApiKey[] = [];
    for (let message = {}; ; ) {
      const page = await this.#read<{ keys: ApiKey[]; next_page_token?: string }>(
        "ListApiKeys",
        message,
        options,
        apiKeyService,
      );
      all.push(...page.keys);
      if (!page.next_page_token) return all;
      message = { page_token: page.next_page_token };
    }
  }
  /** Revokes a key at once. `not_found` if the team has no key with this id. */
  async revokeApiKey(id: string, options: CallOptions = {}): Promise<void> {
    await this.#call("RevokeApiKey", { id }, options, apiKeyService);
  }

  #make<Answer>(
    method: string,
    message: CreateSandboxRequest | ForkSandboxRequest,
    options: CallOptions,
  ): Promise<Answer> {
    return this.#send(method, message, options, sandboxService, message.idempotency_key !== undefined);
  }
  #read<Answer>(
    method: string,
    message: object,
    options: CallOptions,
    service = sandboxService,
  ): Promise<Answer> {
    return this.#send(method, message, options, service, true);
  }
  #call<Answer>(
    method: string,
    message: object,
    options: CallOptions,
    service = sandboxService,
  ): Promise<Answer> {
    return this.#send(method, message, options, service, false);
  }

  async #send<Answer>(
    method: string,
    message: object,
    { signal }: CallOptions,
    service: string,
    repeatable: boolean,
  ): Promise<Answer> {
    const response = await send(this.#fetch, {
      method: "POST",
      url: `${this.#url}/${service}/${method}`,
      headers: { "content-type": "application/json", authorization: `Bearer ${this.#apiKey}` },
      body: JSON.stringify(message),
      signal,
      repeatable,
    });
    try {
      return (await response.json()) as Answer;
    } catch (error) {
      signal?.throwIfAborted();
      throw new ClocheSdkError(
        `the gateway's answer to ${method} is no JSON; is ${this.#url} a Cloche gateway?`,
        { cause: error, code: "invalid_answer" },
      );
    }
  }
}

export const isNotFound = (error: unknown): boolean =>
  error instanceof ClocheApiError && error.code === "not_found";
