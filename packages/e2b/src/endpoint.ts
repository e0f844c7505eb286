/**
 * An endpoint that speaks E2B's API, so that E2B's clients work unchanged (docs/e2b.md).
 *
 *   client ──▶ Api ──▶ the gateway, with the caller's API key
 *          └─▶ Envd ─▶ the data plane, with tokens the gateway issues for the key in the sandbox's own token
 *
 * Stores no records. Its memory is only a cache and an index, and is empty after a restart. It uses only the public contract. Beside an
 * edge in the same process, the edge listens for it and answers for ports of sandboxes; at a cluster's gateway it listens itself.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { isIP, type AddressInfo } from "node:net";
import {
  boundedLog,
  boundHttp,
  http1Bounds,
  HttpDrain,
  isKnownCaller,
  type Log,
  requestIdOf,
  stopListening,
} from "@cloche/base";
import { isSandboxId } from "@cloche/protocol";
import { nodeFetch } from "@cloche/sdk/node";
import { AccessTokens } from "./access-token.ts";
import { Api } from "./api/api.ts";
import { trafficName } from "./api/sandbox-view.ts";
import { E2bError } from "./e2b-error.ts";
import { Envd } from "./envd/envd.ts";
import type { TeamOf } from "./held-bodies.ts";
import { answerError, answerJson, headerOf } from "./http.ts";
import { type OpenRequest, Sandboxes } from "./envd/sandboxes.ts";

export interface E2bOptions {
  gatewayUrl: string;
  /** The edge's address for this process: `https://127.0.0.1:7443`. */
  edgeUrl: string;
  /** PEM of the authority of the edge's certificate. */
  caCert: string;
  baseDomain: string;
  /** The edge's port in sandbox domains. */
  edgePort: number;
  /** 32 random bytes, the same after restarts. */
  secret: Uint8Array;
  ownKey: string;
  /** The team of an API key, whose share of this process's memory its calls use. */
  teamOf: TeamOf;
  log: Log;
}

/** What the edge in this process (Neighbour) offers for a request that it has accepted. */
export interface AskedByEdge {
  /** The request came to the one address of all sandboxes. A signed URL there names no sandbox; its signature tells it. */
  atOwnAddress: boolean;
  /** Lets the edge answer for a port. `token`: the sandbox's, for ports that are not public; undefined: the caller has none. */
  toPort(port: {
    sandboxId: string;
    port: number;
    token: string | undefined;
    dropped: ReadonlySet<string>;
    host: string;
  }): OpenRequest;
}

export interface E2bEndpoint {
  /** Listens with plain HTTP, where no edge in this process does; port 0 picks a free one. Answers the port. */
  listen(port: number, address: string): Promise<number>;
  /** Whether a request at the edge is for this endpoint: for `api.<base domain>`, or from E2B's clients for a sandbox. */
  takes(request: IncomingMessage): boolean;
  answer(request: IncomingMessage, response: ServerResponse, asked: AskedByEdge): void;
  /**
   * Stops listening, lets open requests end for up to `graceMs` (default 0), then cuts them; commands run on. On a connection that was used
   * less than `idleMs` ago (default 0) it answers the next request and then closes the connection.
   */
  close(graceMs?: number, idleMs?: number): Promise<void>;
}

const envdPort = 49_983;
/** Headers that say which port a request is for, and who asks. */
const ownHeaders = new Set([
  "e2b-sandbox-id",
  "e2b-sandbox-port",
  "x-access-token",
  "e2b-traffic-access-token",
]);

export function createE2b(options: E2bOptions): E2bEndpoint {
  return new Endpoint(options);
}

class Endpoint implements E2bEndpoint {
  readonly #options: E2bOptions;
  /** For what callers without a good credential cause. */
  readonly #strangersLog: Log;
  readonly #sandboxes: Sandboxes;
  readonly #api: Api;
  readonly #envd: Envd;
  readonly #server = createServer(
    {
      ...http1Bounds,
      // Uploads take long; their bytes must keep coming (boundHttp).
      requestTimeout: 0,
      noDelay: true,
    },
    (request, response) => this.#answer(request, response),
  );
  readonly #drain = new HttpDrain(this.#server);
  readonly #fetch: ReturnType<typeof nodeFetch>;
  #open = 0;
  #onIdle: (() => void) | undefined;

  constructor(options: E2bOptions) {
    this.#options = options;
    this.#strangersLog = boundedLog(options.log);
    boundHttp(this.#server, "e2b");
    const { gatewayUrl, edgeUrl, caCert, baseDomain, edgePort, ownKey, teamOf } = options;
    this.#fetch = nodeFetch({ caCert, edgeUrl, baseDomain });
    this.#sandboxes = new Sandboxes({
      gatewayUrl,
      fetch: this.#fetch,
      domain: edgePort === 443 ? baseDomain : `${baseDomain}:${edgePort}`,
      tokens: new AccessTokens(options.secret),
      ownKey,
      teamOf,
    });
    this.#api = new Api(this.#sandboxes);
    this.#envd = new Envd(this.#sandboxes);
  }

  async listen(port: number, address: string): Promise<number> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once("error", reject);
      this.#server.listen(port, address, () => resolve());
    });
    return (this.#server.address() as AddressInfo).port;
  }

  takes(request: IncomingMessage): boolean {
    const label = this.#label(request);
    if (label === "api") return true;
    const port = portOf(label);
    return (
      port?.port === envdPort ||
      (port !== undefined && headerOf(request, "e2b-traffic-access-token") !== undefined)
    );
  }

  answer(request: IncomingMessage, response: ServerResponse, asked: AskedByEdge): void {
    this.#answer(request, response, asked);
  }

  /** `asked`: by the edge; undefined: at this endpoint's own listener. */
  #answer(request: IncomingMessage, response: ServerResponse, asked?: AskedByEdge): void {
    const beganMs = performance.now();
    const requestId = requestIdOf(request.headers);
    response.setHeader("x-request-id", requestId);
    response.setHeader("access-control-allow-origin", "*");
    const path = (request.url ?? "").split("?", 1)[0];
    this.#open += 1;
    let isOpen = true;
    const ended = (): void => {
      if (isOpen) this.#open -= 1;
      isOpen = false;
      if (this.#open === 0) this.#onIdle?.();
    };
    response.once("close", ended);
    this.#route(request, response, asked).then(
      (error) => {
        if (error === "at the edge") return ended();
        const fields = {
          request_id: requestId,
          method: request.method,
          path,
          status: error?.status ?? response.statusCode,
          ms: Math.round((performance.now() - beganMs) * 10) / 10,
        };
        const log = isKnownCaller(request) ? this.#options.log : this.#strangersLog;
        if (error === undefined) log.info(fields, "answered");
        else if (error.status === 500) this.#strangersLog.error({ ...fields, err: error }, "failed");
        else log.info({ ...fields, code: error.code, reason: error.message }, "refused");
      },
      (error: unknown) => {
        this.#strangersLog.error({ request_id: requestId, err: error }, "a request was not answered");
        answerError(response, error);
      },
    );
  }

  async close(graceMs = 0, idleMs = 0): Promise<void> {
    this.#drain.begin();
    const closed = this.#server.listening ? stopListening(this.#server) : undefined;
    await this.#drain.quiet(idleMs);
    this.#sandboxes.close();
    if (graceMs > 0 && this.#open > 0) await this.#idleWithin(graceMs);
    this.#server.closeAllConnections();
    this.#server.close();
    await closed;
    // Requests that the edge passed to this endpoint end with the edge.
    void this.#fetch.close().catch(() => undefined);
  }

  async #idleWithin(graceMs: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const idle = new Promise<void>((resolve) => (this.#onIdle = resolve));
    await Promise.race([idle, new Promise<void>((resolve) => (timer = setTimeout(resolve, graceMs)))]);
    clearTimeout(timer);
  }

  async #route(
    request: IncomingMessage,
    response: ServerResponse,
    asked: AskedByEdge | undefined,
  ): Promise<Answered> {
    if (request.method === "OPTIONS") return preflight(request, response);
    let target: { sandboxId: string; port: number } | undefined;
    try {
      target = this.#target(request);
    } catch (error) {
      return answerError(response, error);
    }
    if (target === undefined) {
      // A signed URL at the one address of all sandboxes names no sandbox.
      const isSigned = asked?.atOwnAddress !== false && /^\/files\?(.*&)?signature=/.test(request.url ?? "");
      return isSigned ? this.#envd.answer(request, response, undefined) : this.#api.answer(request, response);
    }
    if (target.port === envdPort) return this.#envd.answer(request, response, target.sandboxId);
    return this.#toPort(request, response, target, asked);
  }

  /** The sandbox and port in the headers or the host name; undefined: a request for the API. */
  #target(request: IncomingMessage): { sandboxId: string; port: number } | undefined {
    const sandboxId = headerOf(request, "e2b-sandbox-id");
    if (sandboxId === undefined) return portOf(this.#label(request));
    if (!isSandboxId(sandboxId))
      throw new E2bError(
        "unavailable",
        `The sandbox was not found: header E2b-Sandbox-Id is no sandbox's id`,
        { status: 502 },
      );
    const port = Number(headerOf(request, "e2b-sandbox-port") ?? envdPort);
    if (!Number.isInteger(port) || port < 1 || port > 65_535)
      throw new E2bError("invalid_argument", "header E2b-Sandbox-Port must be a port from 1 to 65535");
    return { sandboxId, port };
  }

  /** Ports are at edges; only the token that opens one is found here. */
  async #toPort(
    request: IncomingMessage,
    response: ServerResponse,
    { sandboxId, port }: { sandboxId: string; port: number },
    asked: AskedByEdge | undefined,
  ): Promise<Answered> {
    const host = `${port}-${sandboxId}.${this.#sandboxes.domain}`;
    if (asked === undefined) return answerError(response, atEdge(host));
    const traffic = headerOf(request, "e2b-traffic-access-token");
    const access = headerOf(request, "x-access-token");
    const apiKey =
      (traffic === undefined ? undefined : this.#sandboxes.keyIn(traffic, trafficName(sandboxId))) ??
      (access === undefined ? undefined : this.#sandboxes.keyIn(access, sandboxId));
    try {
      const token =
        apiKey === undefined
          ? undefined
          : (await this.#sandboxes.gateway(apiKey).issueDataPlaneToken(sandboxId)).jwt;
      const carried = asked.toPort({ sandboxId, port, token, dropped: ownHeaders, host });
      if (apiKey !== undefined) this.#sandboxes.endWithKey(carried, apiKey, sandboxId);
      return "at the edge";
    } catch (error) {
      return answerError(response, error);
    }
  }

  /** The part of the Host header before the base domain. */
  #label(request: IncomingMessage): string {
    const host = (request.headers.host ?? "").toLowerCase().replace(/:\d+$/, "").replace(/\.$/, "");
    const suffix = `.${this.#options.baseDomain}`;
    return isIP(host) === 0 && host.endsWith(suffix) ? host.slice(0, -suffix.length) : "";
  }
}

/** An error that was answered; undefined: success; `at the edge`: the edge answers, and logs it. */
type Answered = E2bError | undefined | "at the edge";

const atEdge = (host: string): E2bError =>
  new E2bError(
    "failed_precondition",
    `ports of sandboxes are not at this address: use https://${host}, with the sandbox's token`,
    { status: 421 },
  );

function portOf(label: string): { sandboxId: string; port: number } | undefined {
  const [, port, sandboxId = ""] = /^([1-9]\d{0,4})-(sbx-.*)$/.exec(label) ?? [];
  return isSandboxId(sandboxId) && Number(port) <= 65_535 ? { sandboxId, port: Number(port) } : undefined;
}

/** Allows all origins: credentials are in headers or URLs, never in cookies. */
async function preflight(request: IncomingMessage, response: ServerResponse): Promise<undefined> {
  answerJson(response, 204, undefined, {
    "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
    "access-control-allow-headers": headerOf(request, "access-control-request-headers") ?? "*",
    "access-control-max-age": "86400",
  });
  return undefined;
}
