import { Gateway } from "./gateway.ts";
import type { CreateSandboxRequest, ForkSandboxRequest, ListSandboxesRequest } from "./gateway-types.ts";
import { requireRuntime } from "./runtime.ts";
import { isLoopback, serviceAddress } from "./service-address.ts";
import { Sandbox, type DataPlaneSettings } from "./sandbox.ts";
import type { Fetch } from "./fetch.ts";
import type { CallOptions } from "./transport.ts";
import type { OpenWebSocket } from "./web-socket.ts";

/** All are optional: what is left out comes from the environment, where the platform has one. */
export interface ClocheOptions {
  /**
   * Where the gateway is, `http://127.0.0.1:7080` say. Default: CLOCHE_URL, else CLOCHE_GATEWAY_URL, else, in Node, the
   * service of this machine. None: an error with code `configuration`.
   */
  gatewayUrl?: string;
  /**
   * The team's API key: keep it on your backend. Default: CLOCHE_API_KEY, else, in Node, that of this machine's service.
   * None: an error with code `configuration`.
   */
  apiKey?: string;
  /** Default: the platform's; in Node one of its own that knows the service's CA and has no time limit. */
  fetch?: Fetch;
  /** Default: the platform's; in Node as `fetch`. */
  webSocket?: OpenWebSocket;
  /** Store what is no JSON object as `{"v": value}`, so that a get always answers an object. Default false. */
  wrapStoreValues?: boolean;
  /**
   * Reach each sandbox at its own domain, by TLS, also where gateway and sandboxes have plain addresses on this machine's
   * loopback. Default false; true where CLOCHE_EDGE_URL is set.
   */
  useDomains?: boolean;
}

/** Bun would give up after five minutes; the others know of no `timeout`. */
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
  /** Every method of the gateway, plain. */
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
      // A gateway elsewhere means its own loopback, not ours.
      plainLoopback: !useDomains && isLoopback(gatewayUrl),
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

  /** One clone of a sandbox, RUNNING unless that took more than 10 s; `Sandbox.forkMany` makes several. */
  async fork(request: Omit<ForkSandboxRequest, "count">, options: CallOptions = {}): Promise<Sandbox> {
    return Sandbox.withToken(this.gateway, this.#settings, await this.gateway.forkSandbox(request, options));
  }

  /** Ends the connections that are kept for further calls, in Node. A program ends without it too. */
  async close(): Promise<void> {
    const { fetch } = this.#settings as { fetch: Fetch & { close?(): Promise<void> } };
    await fetch.close?.();
  }

  /** `await using cloche = new Cloche()` closes it; sandboxes live on. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
