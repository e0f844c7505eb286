/**
 * Kept-alive connections to one agent, or to one port of its sandbox, for one epoch of a route. Owns its sockets:
 * closing the pool (new epoch of the route, sandbox gone, edge stopping) ends them all, and requests under way fail as
 * `closed`.
 */
import net from "node:net";
import type { Duplex } from "node:stream";
import type { TLSSocket } from "node:tls";
import { type ChannelAddress, connectToAgent, type PieceRate } from "@cloche/base";
import { AgentConnection, type AnswerFailure, type Owner } from "./agent-connection.ts";
import { askHealth } from "./ask-health.ts";
import type { EdgeLimits } from "../edge-limits.ts";

/** Opens a raw connection; calls `done` once; the socket may still be connecting. `isWanted`: false gives up. */
export type Dial = (
  done: (error: unknown, socket?: Duplex, connected?: boolean) => void,
  isWanted: () => boolean,
) => void;

type Acquired = (connection: AgentConnection | undefined, failure?: AnswerFailure) => void;

export function dialTcp(host: string, port: number, timeoutMs: number): Dial {
  return (done) => {
    const socket = net.connect({
      host,
      port,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: 30_000,
      allowHalfOpen: true,
    });
    const timer = setTimeout(
      () => socket.destroy(new Error(`no connection within ${timeoutMs} ms`)),
      timeoutMs,
    );
    socket.once("connect", () => clearTimeout(timer));
    socket.once("close", () => clearTimeout(timer));
    done(undefined, socket, false);
  };
}

/** Connects through the channel to the agent; calls `done` when it is certain that the agent has the channel's key. */
export function dialChannel(address: ChannelAddress, timeoutMs: number): Dial {
  return (done) => whenCertain(connectToAgent(address), timeoutMs, done);
}

function whenCertain(socket: TLSSocket, timeoutMs: number, done: Parameters<Dial>[0]): void {
  const failed = (error: unknown): void => {
    clearTimeout(timer);
    done(error);
  };
  const timer = setTimeout(() => socket.destroy(new Error(`no handshake within ${timeoutMs} ms`)), timeoutMs);
  socket.once("error", failed);
  socket.once("secureConnect", () => {
    clearTimeout(timer);
    socket.off("error", failed);
    done(undefined, socket, true);
  });
}

/**
 * Keeps a machine awake until `release` is called, which is repeatable (host/src/machines/doze.ts). `awake`: resolves
 * when it is; undefined: it is.
 */
export interface KeptAwake {
  awake: Promise<void> | undefined;
  release(): void;
}

/** `waiter`: the request that gets the connection, or opens its own if that fails. */
interface Ahead {
  waiter?: () => void;
}

const refused = (kind: AnswerFailure["kind"], cause: unknown): AnswerFailure => ({
  kind,
  reused: false,
  answered: false,
  cause,
});

/** For machines that no edge has to keep awake: the relay of another computer does. */
export const staysAwake = (): KeptAwake => ({ awake: undefined, release() {} });

export class AgentPool {
  /** The work that all connections to the sandbox may do in a turn of the event loop. */
  readonly work: PieceRate;
  readonly #keepAwake: () => KeptAwake;
  readonly #dial: Dial;
  readonly #limits: EdgeLimits;
  readonly #nowMs: () => number;
  /** The last used connection is reused first, so that the others reach their idle limit. */
  readonly #idle: AgentConnection[] = [];
  readonly #all = new Set<AgentConnection>();
  readonly #retired = new WeakSet<AgentConnection>();
  #opening = 0;
  /** Set while a connection is opened ahead. */
  #ahead: Ahead | undefined;
  #closed: unknown;

  /** `keepAwake`: called for each connection in use. `nowMs`: monotonic. */
  constructor(
    dial: Dial,
    keepAwake: () => KeptAwake,
    work: PieceRate,
    limits: EdgeLimits,
    nowMs: () => number,
  ) {
    this.work = work;
    this.#dial = dial;
    this.#keepAwake = keepAwake;
    this.#limits = limits;
    this.#nowMs = nowMs;
  }

  /**
   * Calls `done` with a connection ready for start(), once the sandbox is awake. `fresh`: a new connection. `owner`: the
   * client's connection; a kept connection is given to the owner alone for whom it was made.
   */
  acquire(fresh: boolean, done: Acquired, owner?: Owner): void {
    const { awake, release } = this.#keepAwake();
    const acquired: Acquired = (connection, failure) => {
      if (connection === undefined) release();
      else connection.letDoze = release;
      done(connection, failure);
    };
    if (awake === undefined) return this.#acquire(fresh, acquired, owner);
    this.#opening += 1;
    const go = (): void => {
      this.#opening -= 1;
      this.#acquire(fresh, acquired, owner);
    };
    const refuse = (cause: unknown): void => {
      this.#opening -= 1;
      acquired(undefined, refused("connect", cause));
    };
    awake.then(go, refuse);
  }

  /**
   * Opens a connection for the next request, which waits for it, and asks whether the agent is well: after a restore of its memory, the
   * first request takes several times as long as the next. Does nothing if the pool has a connection.
   */
  openAhead(): void {
    if (this.#closed !== undefined || this.size > 0) return;
    const ahead: Ahead = {};
    this.#ahead = ahead;
    this.#open((connection) => {
      const over = (): void => {
        if (this.#ahead !== ahead) return;
        this.#ahead = undefined;
        ahead.waiter?.();
      };
      if (connection === undefined) over();
      else askHealth(connection, this.#limits.agentAheadMs, over);
    }, undefined);
  }

  #acquire(fresh: boolean, done: Acquired, owner: Owner | undefined): void {
    if (this.#closed !== undefined) return done(undefined, refused("closed", this.#closed));
    const kept = fresh ? undefined : this.#pop(owner);
    if (kept !== undefined) return done(kept);
    const ahead = this.#ahead;
    if (!fresh && owner === undefined && ahead !== undefined && ahead.waiter === undefined) {
      ahead.waiter = () => this.#acquire(fresh, done, owner);
      return;
    }
    if (this.#all.size + this.#opening >= this.#limits.agentConnections)
      return done(undefined, refused("exhausted", new Error("too many connections to this sandbox")));
    this.#open(done, owner);
  }

  #open(done: Acquired, owner: Owner | undefined): void {
    this.#opening += 1;
    this.#dial(
      (error, socket, connected) => {
        this.#opening -= 1;
        if (this.#closed !== undefined) {
          socket?.destroy();
          return done(undefined, refused("closed", this.#closed));
        }
        if (socket === undefined) return done(undefined, refused("connect", error));
        const connection = new AgentConnection(socket, {
          connected: connected === true,
          limits: { headBytes: this.#limits.answerHeadBytes, headLines: this.#limits.answerHeadLines },
          work: this.work,
          onIdle: this.#release,
          owner,
        });
        if (!connection.connected) socket.once("connect", () => (connection.connected = true));
        this.#all.add(connection);
        socket.once("close", () => {
          this.#all.delete(connection);
          connection.letDoze();
        });
        done(connection);
      },
      () => this.#closed === undefined,
    );
  }

  #pop(owner: Owner | undefined): AgentConnection | undefined {
    for (let index = this.#idle.length - 1; index >= 0; index -= 1) {
      const connection = this.#idle[index] as AgentConnection;
      if (connection.owner !== owner) continue;
      this.#idle.splice(index, 1);
      if (this.#isUsable(connection)) return connection;
      connection.socket.destroy();
    }
    return undefined;
  }

  #isUsable({ socket, owner, idleUntilMs }: AgentConnection): boolean {
    return !socket.destroyed && owner?.destroyed !== true && idleUntilMs > this.#nowMs();
  }

  /** The far end is about to stop: closes idle connections, and does not keep those in use. */
  retire(): void {
    for (const connection of this.#idle) connection.socket.destroy();
    this.#idle.length = 0;
    for (const connection of this.#all) this.#retired.add(connection);
  }

  readonly #release = (connection: AgentConnection): void => {
    connection.letDoze();
    if (
      this.#closed !== undefined ||
      connection.owner?.destroyed === true ||
      this.#retired.has(connection) ||
      this.#idle.length >= this.#limits.agentIdleConnections
    ) {
      connection.socket.destroy();
      return;
    }
    // One second less than the agent keeps it, so that the agent never closes it at the moment of its reuse.
    const keepAliveMs = (connection.keepAliveSeconds ?? Number.POSITIVE_INFINITY) * 1000 - 1000;
    connection.idleUntilMs = this.#nowMs() + Math.min(this.#limits.agentIdleMs, keepAliveMs);
    this.#idle.push(connection);
  };

  /** Closes connections that were idle for too long, or whose owner is gone. */
  sweep(): void {
    let kept = 0;
    for (const connection of this.#idle) {
      if (this.#isUsable(connection)) {
        this.#idle[kept] = connection;
        kept += 1;
      } else connection.socket.destroy();
    }
    this.#idle.length = kept;
  }

  get size(): number {
    return this.#all.size + this.#opening;
  }

  close(cause: unknown): void {
    this.#closed = cause;
    this.#idle.length = 0;
    for (const connection of this.#all) connection.close(cause);
  }
}
