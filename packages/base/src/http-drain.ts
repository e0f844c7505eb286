/**
 * How an HTTP server stops without failing a request. A client with an open connection may be sending its next request
 * at the moment when the server closes the connection. So a draining server ends each connection with an answer, and
 * closes a recently opened or answered connection only after its client has had time to send a request.
 *
 *   serving ──begin──▶ draining: each answer ends its connection ──quiet──▶ the other connections may be closed
 */
import type { Server, ServerResponse } from "node:http";
import type { Http2Server, Http2ServerRequest, Http2ServerResponse } from "node:http2";
import net from "node:net";

const checkEveryMs = 20;
/** How long connections are still accepted that the kernel has established already. */
const acceptMsMax = 1_000;

/** A socket, or a session of HTTP/2. */
interface Connection {
  readonly destroyed: boolean;
  once(event: "close", listener: () => void): unknown;
}

/** Connections on which a client may send a request, and when each was opened or answered last. */
export class KeptConnections {
  readonly #usedMs = new Map<Connection, number>();

  /** Call it when a connection is accepted, and after an answer that did not end it. */
  used(connection: Connection): void {
    if (connection.destroyed) return;
    if (!this.#usedMs.has(connection)) connection.once("close", () => this.#usedMs.delete(connection));
    this.#usedMs.set(connection, performance.now());
  }

  /** Whether some open connection was accepted or answered less than `ms` ago. */
  usedWithin(ms: number): boolean {
    const sinceMs = performance.now() - ms;
    return [...this.#usedMs.values()].some((usedMs) => usedMs > sinceMs);
  }
}

/** Resolves when `isQuiet`, or after `graceMs`. */
export async function whenQuiet(isQuiet: () => boolean, graceMs: number): Promise<void> {
  const untilMs = performance.now() + graceMs;
  while (!isQuiet() && performance.now() < untilMs)
    await new Promise((resolve) => setTimeout(resolve, checkEveryMs));
}

/**
 * Takes no new connections; resolves when the last one is closed. Connections that the kernel has established are
 * accepted first: the close of a listening socket resets them. Node's own `close` also cuts idle connections at once.
 */
export async function stopListening(server: net.Server): Promise<void> {
  await acceptEstablished(server);
  return new Promise((resolve) => void net.Server.prototype.close.call(server, () => resolve()));
}

/** Resolves when a turn of the event loop, in which Node accepts one connection at most, has brought none. */
async function acceptEstablished(server: net.Server): Promise<void> {
  let accepted = 0;
  const count = (): void => void (accepted += 1);
  server.on("connection", count);
  const untilMs = performance.now() + acceptMsMax;
  // The turn that has begun may have looked at the listening socket already.
  await turn();
  for (let before = -1; before !== accepted && performance.now() < untilMs; await turn()) before = accepted;
  server.off("connection", count);
}

const turn = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

export interface HttpDrainOptions {
  /** The HTTP/2 server on the same port. */
  http2?: Http2Server;
  /** What accepts the connections; default: the HTTP/1.1 server. */
  listener?: net.Server;
}

/** The drain of an HTTP/1.1 server. Create it before the first connection. */
export class HttpDrain {
  readonly #kept = new KeptConnections();
  readonly #open = new Set<ServerResponse>();
  readonly #listener: net.Server;
  #isDraining = false;

  constructor(server: Server, { http2, listener = server }: HttpDrainOptions = {}) {
    this.#listener = listener;
    listener.prependListener("connection", (socket) => this.#kept.used(socket));
    http2?.prependListener("request", (request: Http2ServerRequest, response: Http2ServerResponse) => {
      const { session } = request.stream;
      // GOAWAY: no further stream begins on this connection, but this one is answered.
      if (this.#isDraining) session?.close();
      else if (session !== undefined) response.once("close", () => this.#kept.used(session));
    });
    server.prependListener("request", (request, response) => {
      if (this.#isDraining) response.shouldKeepAlive = false;
      this.#open.add(response);
      // Not asked for later: a request whose body is left unread loses its socket.
      const { socket } = request;
      response.once("close", () => {
        this.#open.delete(response);
        if (response.shouldKeepAlive) this.#kept.used(socket);
      });
    });
  }

  /** From now on each answer ends its connection. */
  begin(): void {
    this.#isDraining = true;
    for (const response of this.#open) if (!response.headersSent) response.shouldKeepAlive = false;
  }

  /**
   * After `begin` and `stopListening`: resolves when no client is about to send a request, which is `idleMs` after the
   * last connection was accepted or answered. It waits for `idleMs` at most.
   */
  quiet(idleMs: number): Promise<void> {
    return whenQuiet(() => !this.#listener.listening && !this.#kept.usedWithin(idleMs), idleMs);
  }
}
