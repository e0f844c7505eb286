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
  /** Default true. */
  memory?: boolean | undefined;
  /** Answers when it is durable, or after 60 s as it then is. Refused on a single machine. Default false. */
  waitDurable?: boolean | undefined;
};

const sandboxService = "cloche.public.v1.SandboxService";
const apiKeyService = "cloche.public.v1.ApiKeyService";

/**
 * The gateway's methods, one each, in its own field names. Belongs on a team's backend: it holds the API key.
 * Reading calls and those that are safe to repeat are retried when no answer came; creating ones only with an
 * `idempotency_key`.
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

  /** Answers when it is RUNNING, or after 10 s in the state it then has. */
  createSandbox(request: CreateSandboxRequest = {}, options: CallOptions = {}): Promise<SandboxWithToken> {
    return this.#make("CreateSandbox", request, options);
  }
  /** `not_found` where the team has no such sandbox. */
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
  /** Every sandbox, page after page, newest first. */
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
  /** Answers once the deletion is durable. Its checkpoints stay. */
  async deleteSandbox(id: string, options: CallOptions = {}): Promise<void> {
    await this.#call("DeleteSandbox", { id }, options);
  }
  /** Answers at once with SUSPENDING; see `Sandbox.waitFor`. `memory: false` keeps the disk alone: it resumes cold, with its services. */
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
  /** A token for one sandbox, in any state but DELETING and ERROR (`failed_precondition`). */
  issueDataPlaneToken(sandboxId: string, options: CallOptions = {}): Promise<DataPlaneToken> {
    return this.#read("IssueDataPlaneToken", { sandbox_id: sandboxId }, options);
  }
  /** Added. */
  async updateSandbox(request: UpdateSandboxRequest, options: CallOptions = {}): Promise<SandboxInfo> {
    const { metadata, public_ports, ...rest } = request;
    const message = {
      ...rest,
      ...(metadata === undefined ? {} : { metadata: { entries: metadata } }),
      ...(public_ports === undefined ? {} : { public_ports: { ports: public_ports } }),
    };
    return (await this.#read<{ sandbox: SandboxInfo }>("UpdateSandbox", message, options)).sandbox;
  }
  /** Added: the team's checkpoints, also of deleted sandboxes. */
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
  /** Added. */
  deleteCheckpoint(id: string, options: CallOptions = {}): Promise<{ freed_bytes: number }> {
    return this.#call("DeleteCheckpoint", { id }, options);
  }
  /** Added: for how long the team's sandboxes were RUNNING, deleted ones included. */
  getUsage(request: GetUsageRequest = {}, options: CallOptions = {}): Promise<GetUsageResponse> {
    return this.#read("GetUsage", request, options);
  }
  /** Added: a link that opens a port of the sandbox in a browser. `path` defaults to `/`. */
  issuePortLink(
    request: { sandbox_id: string; port: number; path?: string },
    options: CallOptions = {},
  ): Promise<PortLink> {
    return this.#call("IssuePortLink", request, options);
  }
  /** Added: what was done to the team's sandboxes, checkpoints and keys. `page_size`: 100 unless given, at most 1,000. */
  listAuditEntries(
    request: { subject?: string; page_size?: number; page_token?: string } = {},
    options: CallOptions = {},
  ): Promise<AuditPage> {
    return this.#read("ListAuditEntries", request, options);
  }
  /** Added: what the sandbox may reach on the network, and what it was denied. */
  getSandboxEgress(id: string, options: CallOptions = {}): Promise<SandboxEgress> {
    return this.#read("GetSandboxEgress", { id }, options);
  }
  /** Added: what the sandbox uses now, and used in the last hour. Wakes nothing. */
  getSandboxMetrics(id: string, options: CallOptions = {}): Promise<SandboxMetrics> {
    return this.#read("GetSandboxMetrics", { id }, options);
  }
  /** Added: a further API key of the team; `expires_in_seconds` 0: never. */
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
  /** Makes a key useless at once. `not_found` where the team has none of this id. */
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
