import { Gateway } from "./gateway.ts";
import type { CreateSandboxRequest, ForkSandboxRequest, ListSandboxesRequest } from "./gateway-types.ts";
import { Sandbox, type DataPlaneSettings } from "./sandbox.ts";
import type { Fetch } from "./fetch.ts";
import type { CallOptions } from "./transport.ts";
import type { OpenWebSocket } from "./web-socket.ts";

export interface ClocheOptions {
  /** `http://127.0.0.1:7080`, say. */
  gatewayUrl: string;
  /** The team's API key: keep it on your backend. */
  apiKey: string;
  /** Default: the platform's. In Node, `nodeFetch` of `@cloche/sdk/node` knows the local CA and domains that do not resolve. */
  fetch?: Fetch;
  /** Default: the platform's. In Node that of `nodeFetch`, as above. */
  webSocket?: OpenWebSocket;
  /** Store what is no JSON object as `{"v": value}` (spec/contract.md, Data plane: store, rule 6). Default false. */
  wrapStoreValues?: boolean;
}

/**
 * The entry to Cloche.
 *
 * ```ts
 * const cloche = new Cloche({ gatewayUrl, apiKey });
 * const sandbox = await cloche.create({ name: "demo" });
 * const { stdout } = await sandbox.exec(["python3", "-c", "print(6 * 7)"]);
 * await sandbox.delete();
 * ```
 */
export class Cloche {
  /** Every method of the gateway, plain. */
  readonly gateway: Gateway;
  readonly #settings: DataPlaneSettings;

  constructor(options: ClocheOptions) {
    const fetch = options.fetch ?? ((url: string, init: RequestInit) => globalThis.fetch(url, init));
    this.gateway = new Gateway(options.gatewayUrl, options.apiKey, fetch);
    this.#settings = {
      fetch,
      webSocket: options.webSocket,
      wrapStoreValues: options.wrapStoreValues ?? false,
    };
  }

  /** A new sandbox, RUNNING unless that took more than 10 s (then `waitFor`). */
  async create(request: CreateSandboxRequest = {}, options: CallOptions = {}): Promise<Sandbox> {
    return Sandbox.withToken(
      this.gateway,
      this.#settings,
      await this.gateway.createSandbox(request, options),
    );
  }

  /** `not_found` where the team has no such sandbox. */
  async get(id: string, options: CallOptions = {}): Promise<Sandbox> {
    return new Sandbox(this.gateway, this.#settings, await this.gateway.getSandbox(id, options));
  }

  /** All of the team's, newest first. */
  async *list(
    request: Omit<ListSandboxesRequest, "page_token"> = {},
    options: CallOptions = {},
  ): AsyncGenerator<Sandbox, void> {
    for await (const info of this.gateway.allSandboxes(request, options)) {
      yield new Sandbox(this.gateway, this.#settings, info);
    }
  }

  /** One clone; `sandbox.forkMany` makes several. */
  async fork(request: Omit<ForkSandboxRequest, "count">, options: CallOptions = {}): Promise<Sandbox> {
    return Sandbox.withToken(this.gateway, this.#settings, await this.gateway.forkSandbox(request, options));
  }
}
