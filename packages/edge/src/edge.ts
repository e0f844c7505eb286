/**
 * The edge: accepts TLS for `*.<base domain>` and the shared address of all sandboxes, on the loopback also without
 * TLS, and routes every request.
 *
 *   client ─TLS─▶ ClientConnections or Http2Clients ─▶ Exchange ─▶ Router ─▶ Gate (state, wake, restore)
 *      ┌───────────────────────────────────────────────────────────────────────────────────┘
 *      ├─▶ agent  (forward)
 *      ├─▶ port   (forward, through a tunnel)
 *      └─▶ host   (checkpoint, restore)
 *
 * Owns the listening sockets, the routing table and the connections to agents. Has the TLS key and the public token
 * keys, no database, and nothing that must survive a crash. Called by the composition root only.
 */
import { type IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import {
  boundedLog,
  type Clock,
  ConnectionPlaces,
  KeptConnections,
  type Log,
  logIds,
  Metrics,
  whenQuiet,
} from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { ClientConnections } from "./http1/client-connections.ts";
import { type ClientWire, Http1Wire } from "./exchange/client-wire.ts";
import type { CorsOrigins } from "./routing/cors.ts";
import { answerHealth, isHealthCheck } from "./routing/health.ts";
import { edgeMetrics, type MeasureExchange } from "./edge-metrics.ts";
import { edgeLimits, type EdgeLimits } from "./edge-limits.ts";
import { Exchange } from "./exchange/exchange.ts";
import { hostDataPlane } from "./routing/host-data-plane.ts";
import { HeldBytes } from "./held-bytes.ts";
import { HostRelays } from "./upstream/host-relays.ts";
import { Http2Clients } from "./http2/http2-clients.ts";
import type { Http2Request } from "./http2/http2-request.ts";
import type { Http2Response } from "./http2/http2-response.ts";
import { Listener, type ListenerHandlers, type TlsFiles } from "./http1/listener.ts";
import { askNeighbour, type Neighbour } from "./routing/neighbour.ts";
import { answerRaw, endGently, parserProblem } from "./exchange/raw-answer.ts";
import type { HostLinks } from "./upstream/relays.ts";
import { newId, requestIdOf } from "./exchange/request-ids.ts";
import { RouteTable, type RouteClient } from "./route-table.ts";
import { Router, type HostDataPlane } from "./routing/router.ts";
import { type KeptAwake, staysAwake } from "./upstream/agent-pool.ts";
import { Upstreams } from "./upstream/upstreams.ts";

export interface EdgeOptions {
  tls: TlsFiles;
  /** `cloche.localhost`: sandboxes are `<id>.<base domain>`. */
  baseDomain: string;
  /** 0: any free port. */
  port: number;
  /** Address to listen on; default all. */
  address?: string;
  /** Where to listen without TLS: an address of the loopback. Default: not at all. */
  plain?: { port: number; address: string };
  /** In memory (createRouterTransport) or over the network. */
  routes: RouteClient;
  /** Answers `/v1/checkpoint*` and `/v1/restore`, and verifies tokens. Default: the sandbox's host, by `links`. */
  hostDataPlane?: HostDataPlane;
  /** How hosts on other computers are reached. Default: all sandboxes are on this computer. */
  links?: HostLinks;
  /** Keeps a machine of this computer awake while the edge asks it. Default: machines do not doze, or a relay does. */
  keepAwake?(sandboxId: string): KeptAwake;
  /** Origins that may call from a browser; default: any. */
  corsOrigins?: CorsOrigins;
  /** Answers requests for other names below the base domain; default: none. */
  neighbour?: Neighbour;
  /** Where all requests are the neighbour's, without TLS: an address of the loopback. Default: nowhere. */
  neighbourPlain?: { port: number; address: string };
  limits?: Partial<EdgeLimits>;
  /** For tests: an agent without a channel is reached too, and verifies its owner's token itself. Default: it is not. */
  takesAgentsWithoutChannel?: boolean;
  clock: Clock;
  log: Log;
  /** Receives the edge's metrics; default: they are not exposed. */
  metrics?: Metrics;
}

export interface EdgePorts {
  port: number;
  /** Undefined: the edge does not listen without TLS. */
  plainPort: number | undefined;
  /** Undefined: the neighbour has no address of its own. */
  neighbourPort: number | undefined;
}

export interface Edge {
  /**
   * Listens once the routing table is complete, so that a load balancer sends no request before. Rejects when a port is
   * taken, and then listens on none.
   */
  start(): Promise<EdgePorts>;
  /** New connections get the new certificate. */
  setTls(tls: TlsFiles): void;
  /** Throws a ClocheError naming what is not ready. */
  ready(): void;
  /** From now on the edge is not ready, and each answer ends its connection. Requests are still answered. */
  drain(): void;
  /**
   * Stops listening, lets open requests end for up to `graceMs` (default 0), then cuts them; commands run on. During
   * that time a connection stays open until `idleMs` (default 0) after it was accepted or last answered, because its
   * client may be sending a request.
   */
  stop(graceMs?: number, idleMs?: number): Promise<void>;
}

const sweepMs = 5_000;
const heldCheckMs = 250;

function hostDataPlaneOf({ hostDataPlane: own }: EdgeOptions, relays: HostRelays | undefined): HostDataPlane {
  if (own !== undefined) return own;
  if (relays === undefined) throw new Error("an edge needs hostDataPlane or links");
  return hostDataPlane(relays);
}

export function createEdge(options: EdgeOptions): Edge {
  return new EdgeServer(options);
}

class EdgeServer implements Edge {
  readonly #options: EdgeOptions;
  readonly #limits: EdgeLimits;
  readonly #log: Log;
  /** For what callers without a good credential cause. */
  readonly #strangersLog: Log;
  readonly #clock: Clock;
  readonly #table: RouteTable;
  readonly #relays: HostRelays | undefined;
  readonly #upstreams: Upstreams;
  readonly #clients: ClientConnections;
  readonly #http2: Http2Clients;
  readonly #router: Router;
  readonly #measure: MeasureExchange;
  readonly #listener: Listener;
  readonly #plainListener: Listener | undefined;
  readonly #neighbourListener: Listener | undefined;
  /** Connections to the neighbour's own address. */
  readonly #neighbours = new WeakSet<Socket>();
  readonly #refused = new WeakSet<Duplex>();
  readonly #stopping = new AbortController();
  readonly #held: HeldBytes;
  #sweep: NodeJS.Timeout | undefined;
  #heldTimer: NodeJS.Timeout | undefined;
  readonly #kept = new KeptConnections();
  #open = 0;
  #isSynced = false;
  #isDraining = false;

  constructor(options: EdgeOptions) {
    this.#options = options;
    this.#limits = { ...edgeLimits, ...options.limits };
    this.#log = options.log.child({ part: "edge" });
    this.#strangersLog = boundedLog(this.#log);
    this.#clock = options.clock;
    this.#table = new RouteTable((sandboxId, route) => this.#upstreams.routeChanged(sandboxId, route));
    this.#held = new HeldBytes(this.#limits, (sandboxId) => this.#table.get(sandboxId)?.teamId);
    const tunnels = {
      issuer: () => this.#table.keys?.issuer ?? "",
      wallMs: () => this.#clock.nowMs(),
    };
    const monotonicMs = (): number => this.#clock.monotonicMs();
    this.#relays = options.links && new HostRelays(options.links, this.#limits, this.#clock);
    this.#upstreams = new Upstreams(
      options.keepAwake ?? staysAwake,
      this.#limits,
      monotonicMs,
      tunnels,
      options.takesAgentsWithoutChannel ?? false,
      this.#relays,
    );
    const onOver = (exchange: Exchange): void => this.#exchangeOver(exchange);
    const places = new ConnectionPlaces(this.#limits);
    this.#clients = new ClientConnections(this.#limits, places, onOver);
    this.#http2 = new Http2Clients(this.#limits, places, (...stream) => this.#beginHttp2(...stream), onOver);
    this.#router = new Router({
      baseDomain: options.baseDomain.toLowerCase(),
      table: this.#table,
      client: options.routes,
      upstreams: this.#upstreams,
      hostDataPlane: hostDataPlaneOf(options, this.#relays),
      corsOrigins: options.corsOrigins ?? "*",
      limits: this.#limits,
      clock: options.clock,
      log: this.#log,
    });
    this.#measure = edgeMetrics(options.metrics ?? new Metrics(), () => ({
      requests: this.#open,
      connections: places.size,
    }));
    const handlers = this.#handlers();
    this.#listener = Listener.tls(options.tls, this.#clients, places, this.#limits, handlers);
    const plainAt = ({ address }: { address: string }, of: ListenerHandlers): Listener =>
      Listener.plain(address, this.#clients, places, this.#limits, of);
    this.#plainListener = options.plain && plainAt(options.plain, handlers);
    const accepted = (socket: Socket): void => {
      this.#neighbours.add(socket);
      handlers.accepted(socket);
    };
    this.#neighbourListener =
      options.neighbourPlain && plainAt(options.neighbourPlain, { ...handlers, accepted });
  }

  get #listeners(): Listener[] {
    const all = [this.#listener, this.#plainListener, this.#neighbourListener];
    return all.filter((listener) => listener !== undefined);
  }

  #handlers(): ListenerHandlers {
    return {
      request: (request, response, expectsContinue) => this.#enter(request, response, expectsContinue),
      upgrade: (request, socket, first) => this.#upgrade(request, socket, first),
      malformed: (error, socket) => this.#clientError(error, socket),
      http2: (socket) => this.#http2.take(socket),
      accepted: (socket) => this.#kept.used(socket),
      handshakeFailed: (error) => this.#strangersLog.debug({ err: error }, "TLS handshake failed"),
    };
  }

  #enter(
    request: IncomingMessage,
    response: ServerResponse,
    expectsContinue: boolean,
    upgradeFirst?: Buffer,
  ): void {
    const { socket } = request;
    this.#clients.enter(socket, () => {
      if (this.#isDraining) response.shouldKeepAlive = false;
      return this.#begin(request, response, new Http1Wire(socket, response), expectsContinue, upgradeFirst);
    });
  }

  #begin(
    request: IncomingMessage,
    response: ServerResponse,
    wire: ClientWire,
    expectsContinue: boolean,
    upgradeFirst: Buffer | undefined,
  ): Exchange {
    const exchange = new Exchange(request, response, {
      wire,
      requestId: requestIdOf(request),
      expectsContinue,
      upgradeFirst,
      startedMs: this.#clock.monotonicMs(),
    });
    this.#open += 1;
    this.#held.add(exchange);
    // Only after the caller has stored the exchange.
    queueMicrotask(() => this.#enterRoute(exchange));
    return exchange;
  }

  #beginHttp2(request: Http2Request, response: Http2Response, wire: ClientWire): Exchange {
    // HTTP/2 has no event for an expected 100 Continue; only the header tells.
    const expectsContinue = request.headers.expect?.toLowerCase() === "100-continue";
    return this.#begin(
      request,
      response,
      wire,
      expectsContinue,
      request.isUpgrade ? Buffer.alloc(0) : undefined,
    );
  }

  /** Nobody else catches: a request must not end the process. */
  #enterRoute(exchange: Exchange): void {
    try {
      this.#route(exchange);
    } catch (error) {
      exchange.fail(ClocheError.from(error));
    }
  }

  #route(exchange: Exchange): void {
    if (exchange.over || exchange.failure !== undefined) return;
    const isOwn = !this.#neighbours.has(exchange.wire.socket);
    if (isOwn && isHealthCheck(exchange, this.#options.baseDomain))
      return answerHealth(exchange, () => this.ready());
    const { expect } = exchange.request.headers;
    if (expect !== undefined && expect.toLowerCase() !== "100-continue") {
      exchange.refuse(
        new ClocheError("invalid_argument", "the only Expect that is offered is 100-continue"),
        417,
      );
      return;
    }
    if (!this.#askNeighbour(exchange)) this.#router.route(exchange);
  }

  #askNeighbour(exchange: Exchange): boolean {
    const atOwnAddress = this.#neighbours.has(exchange.wire.socket);
    return askNeighbour(this.#options.neighbour, exchange, atOwnAddress, (port) =>
      this.#router.toPort(exchange, port),
    );
  }

  #upgrade(request: IncomingMessage, socket: Socket, first: Buffer): void {
    if (this.#clients.current(socket) !== undefined) {
      socket.destroy();
      return;
    }
    const response = new ServerResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket);
    response.once("finish", () => endGently(socket, this.#limits.lingerMs));
    this.#enter(request, response, false, first);
  }

  #clientError(error: NodeJS.ErrnoException, socket: Socket): void {
    // The parser reports an error for each further byte.
    if (this.#refused.has(socket)) return;
    const problem = parserProblem(error);
    if (problem === undefined || socket.destroyed || !socket.writable) {
      socket.destroy();
      return;
    }
    this.#refused.add(socket);
    const current = this.#clients.current(socket);
    if (current === undefined) {
      const requestId = newId();
      answerRaw(socket, problem.error, requestId, this.#limits.lingerMs, problem.status);
      this.#strangersLog.info(
        { request_id: requestId, status: problem.status, reason: error.code },
        "request refused",
      );
    } else if (current.request.complete) {
      // Bad bytes after a good request: its answer is sent, then the connection ends.
      current.response.once("finish", () => socket.destroySoon());
    } else {
      current.bodyOver();
      current.refuse(problem.error, problem.status);
    }
  }

  #exchangeOver(exchange: Exchange): void {
    this.#open -= 1;
    const { joined } = exchange;
    if (joined === undefined || joined[0].closed) this.#ended(exchange);
    else joined[0].once("close", () => this.#ended(exchange));
    const tookMs = this.#clock.monotonicMs() - exchange.startedMs;
    if (!exchange.isHealthCheck) this.#noteOver(exchange, tookMs);
    const { upgraded, wire, response } = exchange;
    if (!upgraded && (wire.isHttp2 || response.shouldKeepAlive)) this.#kept.used(wire.socket);
  }

  #ended(exchange: Exchange): void {
    this.#held.delete(exchange);
    exchange.ended();
  }

  #noteOver(exchange: Exchange, tookMs: number): void {
    const { request, response, failure } = exchange;
    this.#measure(exchange, tookMs);
    const fields = {
      ...logIds(exchange),
      sandbox_id: exchange.sandboxId,
      method: request.method,
      path: exchange.path,
      status: response.headersSent ? response.statusCode : 0,
      ms: Math.round(tookMs * 10) / 10,
    };
    if (exchange.logsItself) return;
    const log = exchange.callerIsKnown ? this.#log : this.#strangersLog;
    if (exchange.gone) log.info(fields, "client went away");
    else if (failure !== undefined) log.info({ ...fields, code: failure.code, err: failure }, "refused");
    else log.info(fields, "answered");
  }

  async start(): Promise<EdgePorts> {
    const { port: wanted, address, plain, neighbourPlain: beside } = this.#options;
    await new Promise<void>((resolve) => {
      this.#table
        .watch(this.#options.routes, this.#clock, this.#log, this.#stopping.signal, resolve)
        .catch((error: unknown) => this.#log.error({ err: error }, "watching routes failed"));
    });
    this.#isSynced = true;
    try {
      const port = await this.#listener.listen(wanted, address);
      const plainPort = plain && (await this.#plainListener?.listen(plain.port, plain.address));
      const neighbourPort = beside && (await this.#neighbourListener?.listen(beside.port, beside.address));
      this.#sweep = setInterval(() => this.#upstreams.sweep(), sweepMs);
      this.#sweep.unref();
      this.#heldTimer = setInterval(() => this.#held.check(), heldCheckMs);
      this.#heldTimer.unref();
      return { port, plainPort, neighbourPort };
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  setTls(tls: TlsFiles): void {
    this.#listener.setTls(tls);
  }

  ready(): void {
    if (this.#isDraining) throw new ClocheError("unavailable", "the edge is stopping");
    if (!this.#isSynced) throw new ClocheError("unavailable", "the edge does not know its routes yet");
  }

  drain(): void {
    this.#isDraining = true;
    // The neighbour may need this edge until its last answer is given: it gets no new connection.
    void this.#neighbourListener?.close();
    this.#clients.drain();
    this.#http2.drain();
  }

  #isQuiet(idleMs: number): boolean {
    const listens = this.#listeners.some(({ listening }) => listening);
    return !listens && this.#open === 0 && !this.#kept.usedWithin(idleMs);
  }

  async stop(graceMs = 0, idleMs = 0): Promise<void> {
    this.drain();
    const ended = Promise.all(this.#listeners.map((listener) => listener.close()));
    await whenQuiet(() => this.#isQuiet(idleMs), graceMs);
    this.#stopping.abort();
    clearInterval(this.#sweep);
    clearInterval(this.#heldTimer);
    this.#clients.closeAll();
    this.#http2.closeAll();
    this.#upstreams.close();
    this.#relays?.close();
    for (const listener of this.#listeners) listener.destroyConnections();
    await ended;
  }
}
