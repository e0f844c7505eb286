import type { OkResponse, ServiceDefinition, ServiceRecord } from "@cloche/protocol";
import { bodyOf, type DataPlane, type DataPlaneRequest } from "./data-plane.ts";
import { ClocheConnectionError } from "./errors.ts";
import type { FetchResponse } from "./fetch.ts";
import type { CallOptions } from "./transport.ts";

/** Answer of an exec in a service's container. */
export interface ServiceExecResponse {
  /** Bytes that are not UTF-8 are U+FFFD. */
  stdout: string;
  /** As `stdout`. */
  stderr: string;
  /** 128 + N: killed by signal N. */
  exit_code: number;
  /** Whether it was killed because `timeout_secs` were over. */
  timed_out: boolean;
  /** True if one of its processes was killed because the sandbox's memory was used up. */
  out_of_memory?: boolean;
}

/** Supervised background services of a sandbox. */
export class Services {
  readonly #dataPlane: DataPlane;

  constructor(dataPlane: DataPlane) {
    this.#dataPlane = dataPlane;
  }

  /** Every defined service, by name. */
  async list(options: CallOptions = {}): Promise<ServiceRecord[]> {
    return (await this.#dataPlane.json<{ services: ServiceRecord[] }>("GET", "/v1/services", options))
      .services;
  }

  /** `not_found` if no service of this name is defined. */
  get(name: string, options: CallOptions = {}): Promise<ServiceRecord> {
    return this.#call("GET", name, "", options);
  }

  /** Creates or replaces a definition; a running service uses it from its next start. */
  put(name: string, definition: ServiceDefinition, options: CallOptions = {}): Promise<ServiceRecord> {
    return this.#call("PUT", name, "", { json: definition, ...options });
  }

  /** Starts a service after its needs; answers when it runs or has failed. 409 naming a need that is unknown, failed or in a cycle. */
  start(name: string, options: CallOptions = {}): Promise<ServiceRecord> {
    return this.#call("POST", name, "/start", { ...options, repeatable: true });
  }

  /** Stops the whole process tree: SIGTERM, after 10 s SIGKILL. */
  stop(name: string, options: CallOptions = {}): Promise<ServiceRecord> {
    return this.#call("POST", name, "/stop", { ...options, repeatable: true });
  }

  /** Stops a service and removes its definition. */
  delete(name: string, options: CallOptions = {}): Promise<OkResponse> {
    return this.#call("DELETE", name, "", { ...options, repeatable: false });
  }

  /** Runs a command in a service's container. The time limit is in seconds here. */
  exec(
    name: string,
    cmd: readonly string[],
    options: CallOptions & { timeout_secs?: number } = {},
  ): Promise<ServiceExecResponse> {
    const { timeout_secs, signal } = options;
    return this.#call("POST", name, "/exec", { json: { cmd, timeout_secs }, signal });
  }

  /** The log, or its last `tail` lines. */
  async logs(name: string, options: CallOptions & { tail?: number } = {}): Promise<string> {
    const { tail, signal } = options;
    return (await this.#log(name, { query: { tail }, signal })).text();
  }

  /** The log while it is written, until the loop is left, the signal aborts or the service is deleted. */
  async *followLogs(
    name: string,
    options: CallOptions & { tail?: number } = {},
  ): AsyncGenerator<string, void> {
    const { tail, signal } = options;
    const query = { tail, follow: true };
    const { readText } = await import("./event-stream.ts");
    const response = await this.#log(name, { query, signal });
    try {
      yield* readText(bodyOf(response));
    } catch (error) {
      signal?.throwIfAborted();
      const cause = { cause: error };
      throw new ClocheConnectionError(
        "the connection that followed the log ended; the service may go on",
        cause,
      );
    }
  }

  #call<Answer>(method: string, name: string, route: string, request: DataPlaneRequest): Promise<Answer> {
    return this.#dataPlane.json(method, pathOf(name) + route, request);
  }

  #log(name: string, request: DataPlaneRequest): Promise<FetchResponse> {
    return this.#dataPlane.request("GET", `${pathOf(name)}/logs`, request);
  }
}

const pathOf = (name: string): string => `/v1/services/${encodeURIComponent(name)}`;
