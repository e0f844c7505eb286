/**
 * The connection pools of each route: one for the agent, and one for each port in use. A route's pools live as long as
 * its epoch and address. When either changes, or the sandbox is gone, their sockets are useless and are closed at once.
 */
import { PieceRate } from "@cloche/base";
import { ClocheError, internalHeaders, portTunnelPath } from "@cloche/protocol";
import type { Route } from "@cloche/protocol/edge";
import { AgentPool, dialChannel, dialTcp, type Dial, type KeptAwake, staysAwake } from "./agent-pool.ts";
import type { HostRelays } from "./host-relays.ts";
import { Http2Port } from "./http2-port.ts";
import { InnerCredentials } from "./inner-credentials.ts";
import type { AnswerHandlers } from "./agent-connection.ts";
import type { EdgeLimits } from "../edge-limits.ts";

interface Upstream {
  epoch: bigint;
  hostId: string;
  /** Address of the host that relays; empty: the agent is reached directly. */
  hostAddress: string;
  host: string;
  port: number;
  channelKey: Uint8Array;
  /** Undefined: the route has no channel key, as only tests of this package make it. */
  credentials: InnerCredentials | undefined;
  agent: AgentPool;
  ports: Map<number, Port>;
}

/** The connections to a server on a port. */
export interface Port {
  http1: AgentPool;
  http2: Http2Port;
  /** Set when a request by HTTP/1.1 showed that the server speaks only HTTP/2. */
  speaksHttp2Alone: boolean;
}

/** The tunnel was refused: nothing listens on that port. */
export class PortClosedError extends Error {}

export class Upstreams {
  readonly #upstreams = new Map<string, Upstream>();
  readonly #keepAwake: (sandboxId: string) => KeptAwake;
  readonly #limits: EdgeLimits;
  readonly #nowMs: () => number;
  readonly #tunnels: { issuer: () => string; wallMs: () => number };
  readonly #isLenient: boolean;
  readonly #relays: HostRelays | undefined;

  /**
   * `nowMs`: monotonic. `tunnels`: issuer and clock of inner tokens. `isLenient`: agents without a channel are reached.
   * `relays`: for sandboxes on other computers.
   */
  constructor(
    keepAwake: (sandboxId: string) => KeptAwake,
    limits: EdgeLimits,
    nowMs: () => number,
    tunnels: { issuer: () => string; wallMs: () => number },
    isLenient: boolean,
    relays?: HostRelays,
  ) {
    this.#keepAwake = keepAwake;
    this.#limits = limits;
    this.#nowMs = nowMs;
    this.#tunnels = tunnels;
    this.#isLenient = isLenient;
    this.#relays = relays;
    if (relays !== undefined) relays.onDraining = (hostId) => this.#retire(hostId);
  }

  agent(route: Route): AgentPool {
    return this.#upstream(route).agent;
  }

  /** Makes inner tokens for the agent; undefined: the route has no channel key, and the agent takes owners' tokens. */
  credentials(route: Route): InnerCredentials | undefined {
    return this.#upstream(route).credentials;
  }

  port(route: Route, port: number): Port {
    const upstream = this.#upstream(route);
    let known = upstream.ports.get(port);
    if (known === undefined) {
      const dial = dialTunnel(upstream, route.sandboxId, port, this.#limits.agentAnswerMs);
      known = {
        http1: new AgentPool(dial, staysAwake, upstream.agent.work, this.#limits, this.#nowMs),
        http2: new Http2Port(dial, upstream.agent.work, this.#limits),
        speaksHttp2Alone: false,
      };
      upstream.ports.set(port, known);
    }
    return known;
  }

  #upstream(route: Route): Upstream {
    const known = this.#upstreams.get(route.sandboxId);
    if (known !== undefined && fits(known, route)) return known;
    if (known !== undefined) close(known, "the sandbox moved");
    const { epoch, hostId, hostAddress, agentHost: host, agentPort: port, channelKey: key } = route;
    const isOld = key.length === 0;
    const dial = this.#dial(route);
    const keepAwake = (): KeptAwake => this.#keepAwake(route.sandboxId);
    const work = new PieceRate(this.#limits.piecesPerMs);
    const upstream: Upstream = {
      epoch,
      hostId,
      hostAddress,
      host,
      port,
      channelKey: key,
      credentials: isOld ? undefined : new InnerCredentials(key, route.sandboxId, this.#tunnels),
      agent: new AgentPool(dial, keepAwake, work, this.#limits, this.#nowMs),
      ports: new Map(),
    };
    this.#upstreams.set(route.sandboxId, upstream);
    return upstream;
  }

  #dial(route: Route): Dial {
    const { hostAddress, agentHost: host, agentPort: port, channelKey: key } = route;
    const { agentConnectMs } = this.#limits;
    if (key.length === 0) {
      // It would get tokens that nobody has verified, by a connection that proves nothing.
      if (!this.#isLenient) return refusing("the sandbox's host has told of no channel to its agent");
      return dialTcp(host, port, agentConnectMs);
    }
    if (hostAddress === "") return dialChannel({ host, port, key }, agentConnectMs);
    const relays = this.#relays;
    if (relays === undefined) return refusing("this edge reaches no other computers");
    return (answer, isWanted) => {
      relays.toAgent(route, isWanted).then((socket) => answer(undefined, socket, true), answer);
    };
  }

  /** The host's program is about to end: does not keep connections through it. */
  #retire(hostId: string): void {
    for (const upstream of this.#upstreams.values()) {
      if (upstream.hostId !== hostId) continue;
      upstream.agent.retire();
      for (const { http1 } of upstream.ports.values()) http1.retire();
    }
  }

  /**
   * Closes pools that a changed route made useless. Opens a connection to an agent whose first request will soon come.
   */
  routeChanged(sandboxId: string, route: Route | undefined): void {
    const known = this.#upstreams.get(sandboxId);
    if (known !== undefined && !(route !== undefined && fits(known, route))) {
      this.#upstreams.delete(sandboxId);
      close(known, route === undefined ? "the sandbox was deleted" : "the sandbox moved");
    }
    // Only on this computer: of a cluster's edges most would open a connection that they do not need.
    if (route?.isAhead === true && route.hostAddress === "" && route.channelKey.length > 0)
      this.agent(route).openAhead();
  }

  /** Closes connections that were idle for too long; called regularly. */
  sweep(): void {
    for (const [sandboxId, upstream] of this.#upstreams) {
      upstream.agent.sweep();
      for (const [port, { http1, http2 }] of upstream.ports) {
        http1.sweep();
        if (http1.size === 0 && !http2.isOpen) upstream.ports.delete(port);
      }
      if (upstream.agent.size === 0 && upstream.ports.size === 0) this.#upstreams.delete(sandboxId);
    }
  }

  close(): void {
    for (const upstream of this.#upstreams.values()) close(upstream, "the edge stops");
    this.#upstreams.clear();
  }
}

/** Not thrown: a request is routed where nobody catches. */
const refusing =
  (message: string): Dial =>
  (done) =>
    done(new ClocheError("unavailable", message, { retryAfterSeconds: 1 }));

const fits = (upstream: Upstream, route: Route): boolean =>
  upstream.epoch === route.epoch &&
  upstream.hostId === route.hostId &&
  upstream.hostAddress === route.hostAddress &&
  upstream.host === route.agentHost &&
  upstream.port === route.agentPort &&
  equalBytes(upstream.channelKey, route.channelKey);

const equalBytes = (a: Uint8Array, b: Uint8Array): boolean => a === b || Buffer.compare(a, b) === 0;

function close(upstream: Upstream, why: string): void {
  for (const { http1, http2 } of upstream.ports.values()) {
    http1.close(new Error(why));
    http2.close(new Error(why));
  }
  upstream.agent.close(new Error(why));
}

/**
 * A raw connection to 127.0.0.1:port in the sandbox, through the agent. The edge has verified the caller, and
 * shows the agent a credential for this port of this sandbox.
 */
function dialTunnel(
  { agent, credentials }: Upstream,
  sandboxId: string,
  port: number,
  timeoutMs: number,
): Dial {
  return (done) => {
    agent.acquire(true, (connection, failure) => {
      if (connection === undefined) return done(failure?.cause ?? new Error("no connection"));
      let answered = false;
      const refuse = (error: unknown): void => {
        if (answered) return;
        answered = true;
        clearTimeout(deadline);
        connection.abandon();
        done(error);
      };
      const deadline = setTimeout(() => refuse(new Error(`no tunnel within ${timeoutMs} ms`)), timeoutMs);
      const handlers: AnswerHandlers = {
        onContinue() {},
        onHead: (head) => refuse(new PortClosedError(`tunnel refused with ${head.status}`)),
        onBody() {},
        onDone() {},
        onDrain() {},
        onFailure: (lost) => refuse(lost.cause),
        onUpgrade(_head, socket, first) {
          answered = true;
          clearTimeout(deadline);
          if (first.length > 0) socket.unshift(first);
          done(undefined, socket, true);
        },
      };
      connection.start(handlers, false);
      const authorization =
        credentials === undefined ? "" : `Authorization: ${credentials.forPort(port)}\r\n`;
      connection.write(
        `GET ${portTunnelPath}${port} HTTP/1.1\r\nHost: ${sandboxId}\r\nConnection: Upgrade\r\nUpgrade: cloche-port\r\n` +
          `${internalHeaders.sandboxId}: ${sandboxId}\r\n${authorization}\r\n`,
      );
      connection.requestSent();
    });
  };
}
