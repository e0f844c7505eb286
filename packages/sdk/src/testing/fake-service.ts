import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { Cloche, type ClocheOptions } from "../cloche.ts";
import type { Fetch } from "../fetch.ts";

export interface Asked {
  method: string;
  /** Path and query. */
  url: string;
  host: string;
  headers: IncomingMessage["headers"];
  body: string;
}
export type Handler = (asked: Asked, response: ServerResponse) => void | Promise<void>;

export const sandboxId = "sbx-aaaaaaaaaaaaaaaaaaaa";
export const domain = `${sandboxId}.cloche.test`;

/** A gateway and a data plane on one plain HTTP server, to which https://<domain> is mapped. Keeps all requests. */
export class FakeService implements AsyncDisposable {
  readonly asked: Asked[] = [];
  /** Answers of gateway methods; the data plane calls `onData`. */
  readonly methods: Record<string, (message: Record<string, unknown>) => unknown> = {};
  onData: Handler = (_asked, response) => json(response, 200, { ok: true });
  tokensIssued = 0;
  tokenLifetimeSeconds = 3_600;
  readonly #server: Server;

  static async start(): Promise<FakeService> {
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return new FakeService(server);
  }

  constructor(server: Server) {
    this.#server = server;
    server.on(
      "request",
      (request: IncomingMessage, response: ServerResponse) => void this.#answer(request, response),
    );
    this.methods.CreateSandbox = (message) => ({
      sandbox: { ...this.info(), ...message },
      ...this.#tokenFields(),
    });
    this.methods.GetSandbox = () => ({ sandbox: this.info() });
    this.methods.IssueDataPlaneToken = () => {
      const { data_plane_token: jwt, data_plane_token_expires_at_unix: expires_at_unix } =
        this.#tokenFields();
      return { jwt, expires_at_unix };
    };
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Maps the sandbox's domain to this server. */
  readonly fetch: Fetch = (url, init) => {
    const target = new URL(url);
    const mapped = target.protocol === "https:" ? `${this.url}${url.slice(target.origin.length)}` : url;
    return globalThis.fetch(mapped, init);
  };

  cloche(options: Partial<ClocheOptions> = {}): Cloche {
    return new Cloche({ gatewayUrl: this.url, apiKey: "secret", fetch: this.fetch, ...options });
  }

  info(): Record<string, unknown> {
    return { id: sandboxId, name: "demo", state: "SANDBOX_STATE_RUNNING", domain, error_message: "" };
  }

  #tokenFields(): { data_plane_token: string; data_plane_token_expires_at_unix: number } {
    this.tokensIssued += 1;
    return {
      data_plane_token: `token-${this.tokensIssued}`,
      data_plane_token_expires_at_unix: Math.floor(Date.now() / 1000) + this.tokenLifetimeSeconds,
    };
  }

  /** Requests to the data plane. */
  get data(): Asked[] {
    return this.asked.filter(({ url }) => url.startsWith("/v1/"));
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    request.on("error", () => undefined);
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const { method = "", url = "", headers } = request;
    const asked = { method, url, host: headers.host ?? "", headers, body: Buffer.concat(chunks).toString() };
    this.asked.push(asked);
    const rpc = /^\/cloche\.public\.v1\.(?:SandboxService|ApiKeyService)\/(\w+)$/.exec(url)?.[1];
    if (rpc === undefined) return this.onData(asked, response);
    try {
      json(response, 200, this.methods[rpc]?.(JSON.parse(asked.body) as Record<string, unknown>) ?? {});
    } catch (error) {
      const { status, code, message } = error as { status: number; code: string; message: string };
      json(response, status, { code, message });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}

export function json(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { "content-type": "application/json", "x-request-id": "req-1", ...headers });
  response.end(JSON.stringify(body));
}
