/**
 * The clients' HTTP/1.1 connections: one exchange at a time on each, in the order sent (pipelining). Detects clients
 * that went away, clients that only shut their sending side, and bodies that stop arriving.
 *
 *   idle ──request──▶ busy ──answered──▶ idle, or the next queued request
 *                      ├── FIN: a grace to take the answer, then closed (an exec's client: a short one)
 *                      ├── last answer given: closing, once the rest of its request was read
 *                      └── closed or reset by the client: Exchange.clientGone
 */
import type { Socket } from "node:net";
import type { ConnectionPlaces } from "@cloche/base";
import { watchBody } from "../exchange/body-stall.ts";
import { askFor } from "../exchange/connection-places.ts";
import { drainRest } from "../exchange/drain-rest.ts";
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "../exchange/exchange.ts";
import { isExecPath } from "../upstream/exec-abort.ts";
import { endGently } from "../exchange/raw-answer.ts";

interface ClientConnection {
  current: Exchange | undefined;
  queue: Array<() => Exchange>;
  endWatch: (() => void) | undefined;
  /** Ends the current request's claim to the connection's place. */
  answered: (() => void) | undefined;
  halfClosed: NodeJS.Timeout | undefined;
  /** The last answer was given. */
  closing: boolean;
}

export class ClientConnections {
  readonly #connections = new Map<Socket, ClientConnection>();
  readonly #limits: EdgeLimits;
  readonly #places: ConnectionPlaces;
  readonly #onOver: (exchange: Exchange) => void;

  /** `onOver`: called when an exchange is over, however it ended. */
  constructor(limits: EdgeLimits, places: ConnectionPlaces, onOver: (exchange: Exchange) => void) {
    this.#limits = limits;
    this.#places = places;
    this.#onOver = onOver;
  }

  add(socket: Socket): void {
    const connection: ClientConnection = {
      current: undefined,
      queue: [],
      endWatch: undefined,
      answered: undefined,
      halfClosed: undefined,
      closing: false,
    };
    this.#connections.set(socket, connection);
    // Node's server calls destroySoon to end a connection after its last answer.
    const end = socket.destroySoon.bind(socket);
    socket.destroySoon = () => this.#close(socket, connection, end);
    socket.on("end", () => this.#halfClosed(socket, connection));
    socket.on("error", () => undefined);
    socket.once("close", () => {
      this.#connections.delete(socket);
      connection.queue = [];
      clearTimeout(connection.halfClosed);
      const { current } = connection;
      current?.clientGone();
      if (current !== undefined) this.#over(socket, connection, current);
    });
  }

  current(socket: Socket): Exchange | undefined {
    return this.#connections.get(socket)?.current;
  }

  /** Forgets a connection that turned out not to be HTTP/1.1. */
  remove(socket: Socket): void {
    this.#connections.delete(socket);
  }

  /** Runs `begin` now, or after the connection's earlier requests were answered. */
  enter(socket: Socket, begin: () => Exchange): void {
    const connection = this.#connections.get(socket);
    if (connection === undefined || connection.closing) return;
    if (connection.current === undefined) return this.#begin(socket, connection, begin);
    if (connection.queue.length >= this.#limits.pipelinedRequests) socket.destroy();
    else connection.queue.push(begin);
  }

  #begin(socket: Socket, connection: ClientConnection, begin: () => Exchange): void {
    const exchange = begin();
    connection.current = exchange;
    connection.answered = askFor(exchange, this.#places, this.#limits);
    const over = (): void => this.#over(socket, connection, exchange);
    exchange.response.once("finish", over);
    exchange.onOver = over;
    if (exchange.hasBody) connection.endWatch = watchBody(exchange, this.#limits, () => socket.bytesRead);
  }

  #over(socket: Socket, connection: ClientConnection, exchange: Exchange): void {
    if (connection.current !== exchange) return;
    connection.current = undefined;
    connection.endWatch?.();
    connection.endWatch = undefined;
    // A connection that was upgraded to another protocol keeps its place.
    if (!exchange.upgraded) connection.answered?.();
    exchange.over = true;
    this.#onOver(exchange);
    if (exchange.hasBody && !exchange.request.complete && !connection.closing)
      drainRest(exchange.request, this.#limits, (isWhole) => isWhole || socket.destroy());
    const next = connection.queue.shift();
    if (next !== undefined && !socket.destroyed) this.#begin(socket, connection, next);
    else if (connection.halfClosed !== undefined) socket.end();
  }

  #halfClosed(socket: Socket, connection: ClientConnection): void {
    const { current } = connection;
    if (current === undefined) return;
    const isExec = isExecPath(current.request.method, current.path);
    const graceMs = isExec ? this.#limits.halfClosedExecGraceMs : this.#limits.halfClosedGraceMs;
    connection.halfClosed = setTimeout(() => socket.destroy(), graceMs);
  }

  /** Reads what the client still sends before it closes: a reset would make the client lose the last answer. */
  #close(socket: Socket, connection: ClientConnection, end: () => void): void {
    if (connection.closing) return;
    connection.closing = true;
    const { current } = connection;
    if (current === undefined || !current.hasBody || current.request.complete) end();
    else if (current.restComes) drainRest(current.request, this.#limits, end);
    else endGently(socket, this.#limits.lingerMs);
  }

  /** Ends each connection with the answer to its last request. */
  drain(): void {
    for (const { current, queue } of this.#connections.values())
      if (current !== undefined && queue.length === 0 && !current.response.headersSent)
        current.response.shouldKeepAlive = false;
  }

  /** Ends every connection as done by the edge: programs in sandboxes run on. */
  closeAll(): void {
    for (const [socket, { current }] of this.#connections) {
      if (current !== undefined) current.over = true;
      socket.destroy();
    }
  }
}
