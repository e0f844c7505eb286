/**
 * The MCP endpoint over streamable HTTP: one path, `/mcp`, for clients of all protocols from 2025-03-26 to 2026-07-28. It has no API key:
 * each request brings a team's key, which is used for calls to the gateway.
 *
 *   request ─▶ Host, Origin ─▶ path ─▶ key, checked by the gateway ─▶ 2026: a server for this request
 *                                                                   └▶ 2025: the server of its session
 *
 * Owns the listener and the sessions; nothing survives it. `close` cancels requests that are under way after `drainMs`.
 */
import { createServer, IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Cloche } from "@cloche/sdk";
import { hostHeaderValidation, originValidation } from "@modelcontextprotocol/node";
import {
  type AuthInfo,
  createMcpHandler,
  isInitializeRequest,
  isLegacyRequest,
  type McpHttpHandler,
  type McpServer,
} from "@modelcontextprotocol/server";
import { authenticate, bearerOf, type Caller, type Keys, Refusal } from "./caller.ts";
import { httpLimits } from "./limits.ts";
import { sendAnswer, webRequestOf } from "./exchange.ts";
import { type SessionLimits, Sessions } from "./sessions.ts";
import { UnderWay, type UnderWayLimits } from "./under-way.ts";

export interface McpEndpointOptions {
  /** IP address to listen on. */
  address: string;
  /** 0: any free port. */
  port: number;
  /** Names that are allowed in Host and Origin, besides those of the loopback. */
  hosts: readonly string[];
  keys: Keys;
  /** Makes the MCP server for a caller. */
  serverFor(cloche: Cloche): McpServer;
  onError?: (error: Error) => void;
  /** The class of requests, which bounds how their bodies are read. Default: node's. */
  requestClass?: typeof IncomingMessage;
  /** Called before anything is answered to a team: bounds what it does not read. Default: no bound. */
  watchAnswer?: (response: ServerResponse, teamId: string) => void;
  /**
   * Called before the server listens: bounds its connections, and makes what ends them at a close. Default: no bounds, and those without a
   * request are cut at once.
   */
  drainOf?: (server: Server) => ServerDrain;
  /** Default: those of `limits.ts`. */
  limits?: Partial<DoorLimits>;
}

/** Ends connections of a server such that no request on them fails. */
export interface ServerDrain {
  /** From now on each answer ends its connection. */
  begin(): void;
  /** Takes no new connections; resolves when the last one is closed. */
  stopListening(): Promise<void>;
  /** Resolves when no client is about to send a request, at the latest after `idleMs`. */
  quiet(idleMs: number): Promise<void>;
}

type DoorLimits = SessionLimits & UnderWayLimits & { keyCheckMs: number; sweepMs: number };

export interface McpEndpoint {
  port: number;
  /** Open sessions of 2025 clients. */
  readonly sessions: number;
  /**
   * Accepts no more connections; requests under way get `drainMs` to end and are then cancelled. With a drain, connections
   * that were used less than `idleMs` ago (default 0) get their next request answered.
   */
  close(drainMs: number, idleMs?: number): Promise<void>;
}

export const mcpPath = "/mcp";
const loopbackNames = ["localhost", "127.0.0.1", "[::1]"];

export async function openMcpEndpoint(options: McpEndpointOptions): Promise<McpEndpoint> {
  const door = new Door(options);
  await door.listen();
  return door;
}

class Door implements McpEndpoint {
  readonly #options: McpEndpointOptions;
  readonly #limits: DoorLimits;
  readonly #sessions: Sessions;
  readonly #modern: McpHttpHandler;
  readonly #server: Server;
  readonly #drain: ServerDrain;
  readonly #callers = new WeakMap<AuthInfo, Caller>();
  readonly #underWay: UnderWay;
  readonly #timers: NodeJS.Timeout[] = [];

  constructor(options: McpEndpointOptions) {
    this.#options = options;
    this.#limits = { ...httpLimits, ...options.limits };
    this.#sessions = new Sessions(this.#limits);
    this.#underWay = new UnderWay(this.#limits);
    const onerror = options.onError;
    this.#modern = createMcpHandler(({ authInfo }) => this.#serverFor(this.#callerOf(authInfo)), {
      legacy: "reject",
      maxRequestBodySize: httpLimits.bodyBytes,
      keepAliveMs: httpLimits.keepAliveMs,
      ...(onerror && { onerror }),
    });
    const { headerBytes, headersTimeoutMs, idleConnectionMs } = httpLimits;
    const settings = {
      maxHeaderSize: headerBytes,
      headersTimeout: headersTimeoutMs,
      requestTimeout: headersTimeoutMs * 2,
      keepAliveTimeout: idleConnectionMs,
      IncomingMessage: options.requestClass ?? IncomingMessage,
    };
    this.#server = createServer(settings, this.#listener());
    this.#drain = options.drainOf?.(this.#server) ?? cutOf(this.#server);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }
  get sessions(): number {
    return this.#sessions.size;
  }

  async listen(): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#server.once("error", reject);
    this.#server.listen(this.#options.port, this.#options.address, () => resolve());
    await promise;
    this.#server.off("error", reject);
    const { sweepMs, keyCheckMs } = this.#limits;
    const every = (ms: number, work: () => Promise<void>): void =>
      void this.#timers.push(setInterval(() => void work().catch(this.#reportFailure), ms).unref());
    every(sweepMs, () => this.#sessions.sweep());
    every(keyCheckMs, () => this.#endRevoked());
  }

  async close(drainMs: number, idleMs = 0): Promise<void> {
    for (const timer of this.#timers) clearInterval(timer);
    this.#drain.begin();
    const closed = this.#drain.stopListening();
    await this.#drain.quiet(idleMs);
    const over = AbortSignal.timeout(drainMs);
    while (!this.#underWay.isEmpty && !over.aborted) await new Promise((resolve) => setTimeout(resolve, 20));
    await this.#sessions.close();
    await this.#modern.close();
    this.#server.closeAllConnections();
    this.#server.close();
    await closed;
  }

  #listener(): (request: IncomingMessage, response: ServerResponse) => void {
    const { address, hosts } = this.#options;
    const names = [...loopbackNames, address.includes(":") ? `[${address}]` : address, ...hosts];
    const hasOurHost = hostHeaderValidation(names);
    const hasOurOrigin = originValidation(names);
    return (request, response) => {
      if (!hasOurHost(request, response) || !hasOurOrigin(request, response)) return;
      this.#admit(request, response).catch((error: unknown) => this.#refuse(response, error));
    };
  }

  async #admit(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if ((request.url ?? "").split("?", 1)[0] !== mcpPath)
      throw new Refusal(404, `the MCP endpoint is ${mcpPath}`);
    const key = bearerOf(request.headers.authorization, httpLimits.apiKeyBytes);
    const caller = await authenticate(key, this.#options.keys);
    if (response.destroyed) return;
    this.#options.watchAnswer?.(response, caller.teamId);
    const whenRead = this.#underWay.enter(key, caller, response, bodyBytesOf(request));
    const web = await webRequestOf(request, response, httpLimits.bodyBytes, whenRead);
    const isModern = !(await isLegacyRequest(web));
    const answer = isModern
      ? await this.#perRequest(web, key, caller)
      : await this.#inSession(web, response, caller);
    await sendAnswer(response, answer);
  }

  /** Ends streams and sessions of keys that are no longer valid. */
  async #endRevoked(): Promise<void> {
    const callers = await this.#underWay.cutRevoked((key) => this.#options.keys.teamOf(key));
    for (const { keyHash } of callers) await this.#sessions.closeOf(keyHash);
  }

  #perRequest(request: Request, key: string, caller: Caller): Promise<Response> {
    const authInfo: AuthInfo = { token: key, clientId: caller.keyHash, scopes: [] };
    this.#callers.set(authInfo, caller);
    return this.#modern.fetch(request, { authInfo });
  }

  async #inSession(request: Request, response: ServerResponse, caller: Caller): Promise<Response> {
    const id = request.headers.get("mcp-session-id");
    if (id === null && !(await isInitialize(request)))
      throw new Refusal(400, "the header mcp-session-id is missing; send initialize to open a session");
    const session =
      id === null
        ? await this.#sessions.create(caller, this.#serverFor(caller))
        : this.#sessions.find(id, caller);
    const leave = session.enter();
    // The client may have left while its body was read.
    if (response.closed) leave();
    else response.once("close", leave);
    const answer = await session.transport.handleRequest(request);
    // A session that failed to begin is removed.
    if (id === null && !answer.ok) await session.transport.close();
    return answer;
  }

  #serverFor({ cloche }: Caller): McpServer {
    return this.#options.serverFor(cloche);
  }

  #callerOf(authInfo: AuthInfo | undefined): Caller {
    const caller = authInfo && this.#callers.get(authInfo);
    if (caller === undefined) throw new Error("a request came past the check of its key");
    return caller;
  }

  readonly #reportFailure = (error: unknown): void => {
    this.#options.onError?.(error instanceof Error ? error : new Error(String(error)));
  };

  #refuse(response: ServerResponse, error: unknown): void {
    if (!(error instanceof Refusal)) this.#reportFailure(error);
    const { status, message, headers } =
      error instanceof Refusal ? error : new Refusal(500, "internal error; see the service's log");
    if (response.headersSent) return void response.destroy();
    // The body was not read, so the connection cannot be used again.
    response.writeHead(status, { ...headers, "content-type": "application/json", connection: "close" });
    response.end(JSON.stringify(errorBody(message)));
  }
}

const cutOf = (server: Server): ServerDrain => ({
  begin: () => undefined,
  stopListening: () => new Promise((resolve) => void server.close(() => resolve())),
  quiet: async () => undefined,
});

const errorBody = (message: string): object => ({
  jsonrpc: "2.0",
  error: { code: -32_000, message },
  id: null,
});

/** The most that a request's body may have. */
function bodyBytesOf({ headers }: IncomingMessage): number {
  if (headers["transfer-encoding"] !== undefined) return httpLimits.bodyBytes;
  return Math.min(Number(headers["content-length"] ?? 0), httpLimits.bodyBytes);
}

async function isInitialize(request: Request): Promise<boolean> {
  if (request.method !== "POST") return false;
  const body: unknown = await request
    .clone()
    .json()
    .catch(() => undefined);
  return (Array.isArray(body) ? body : [body]).some((one) => isInitializeRequest(one));
}
