import { Gateway } from "./gateway.ts";
import type { CreateSandboxRequest, ForkSandboxRequest, ListSandboxesRequest } from "./gateway-types.ts";
import { requireRuntime } from "./runtime.ts";
import { isLoopback, serviceAddress } from "./service-address.ts";
import { Sandbox, type DataPlaneSettings } from "./sandbox.ts";
import type { Fetch } from "./fetch.ts";
import type { CallOptions } from "./transport.ts";
import type { OpenWebSocket } from "./web-socket.ts";

/** All options are optional: missing ones come from the environment, if the platform has one. */
export interface ClocheOptions {
  /**
   * The gateway's URL, for example `http://127.0.0.1:7080`. Default: CLOCHE_URL, else CLOCHE_GATEWAY_URL, else, in Node, the service of
   * this machine. An error with code `configuration` if there is none.
   */
  gatewayUrl?: string;
  /**
   * The team's API key: keep it on your backend. Default: CLOCHE_API_KEY, else, in Node, the key of this machine's service. An error with
   * code `configuration` if there is none.
   */
  apiKey?: string;
  /** Default: the platform's fetch; in Node one that trusts the service's CA and has no time limit. */
  fetch?: Fetch;
  /** Default: the platform's WebSocket; in Node one that trusts the service's CA. */
  webSocket?: OpenWebSocket;
  /** Store values other than JSON objects as `{"v": value}`, so that a get always answers an object. Default false. */
  wrapStoreValues?: boolean;
  /**
   * Reach each sandbox at its own domain, by TLS, even if gateway and sandboxes have plain addresses on this machine's loopback. Default
   * false; true if CLOCHE_EDGE_URL is set.
   */
  useDomains?: boolean;
}

/** Without `timeout: false` Bun gives up after five minutes; other runtimes ignore the option. */
const platformFetch: Fetch = (url, init) => globalThis.fetch(url, { ...init, timeout: false } as RequestInit);

/**
 * The entry to Cloche.
 *
 * ```ts
 * await using cloche = new Cloche();
 * await using sandbox = await cloche.create({ name: "demo" });
 * const { stdout } = await sandbox.exec(["python3", "-c", "print(6 * 7)"]);
 * ```
 */
export class Cloche {
  /** All methods of the gateway, one to one. */
  readonly gateway: Gateway;
  readonly #settings: DataPlaneSettings;

  constructor(options: ClocheOptions = {}) {
    requireRuntime();
    const { gatewayUrl, apiKey, useDomains } = serviceAddress(options);
    const fetch = options.fetch ?? platformFetch;
    this.gateway = new Gateway(gatewayUrl, apiKey, fetch);
    this.#settings = {
      fetch,
      webSocket: options.webSocket,
      wrapStoreValues: options.wrapStoreValues ?? false,
      // A loopback address from a gateway on another machine means that machine's loopback.
      plainLoopback: !useDomains && isLoopback(gatewayUrl),
    };
  }

  /** Makes a sandbox. It is RUNNING, unless that takes more than 10 s (then use `waitFor`). */
  async create(request: CreateSandboxRequest = {}, options: CallOptions = {}): Promise<Sandbox> {
    return Sandbox.withToken(
      this.gateway,
      this.#settings,
      await this.gateway.createSandbox(request, options),
    );
  }

  /** `not_found` if the team has no such sandbox. */
  async get(id: string, options: CallOptions = {}): Promise<Sandbox> {
    return new Sandbox(this.gateway, this.#settings, await this.gateway.getSandbox(id, options));
  }

  /** All sandboxes of the team, newest first. */
  async *list(
    request: Omit<ListSandboxesRequest, "page_token"> = {},
    options: CallOptions = {},
  ): AsyncGenerator<Sandbox, void> {
    for await (const info of this.gateway.allSandboxes(request, options)) {
      yield new Sandbox(this.gateway, this.#settings, info);
    }
  }

  /** Makes one clone of a sandbox. It is RUNNING, unless that takes more than 10 s. `Sandbox.forkMany` makes several. */
  async fork(request: Omit<ForkSandboxRequest, "count">, options: CallOptions = {}): Promise<Sandbox> {
    return Sandbox.withToken(this.gateway, this.#settings, await this.gateway.forkSandbox(request, options));
  }

  /** Closes kept connections, in Node. A program can also end without this call. */
  async close(): Promise<void> {
    const { fetch } = this.#settings as { fetch: Fetch & { close?(): Promise<void> } };
    await fetch.close?.();
  }

  /** `await using cloche = new Cloche()` closes it; sandboxes live on. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
