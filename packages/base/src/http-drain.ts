/**
 * How an HTTP server stops without failing a request. A client with an open connection may be sending its next request
 * at the moment when the server closes the connection. So a draining server ends each connection with an answer, and
 * closes a recently answered connection only after its client has had time to send a request.
 *
 *   serving ──begin──▶ draining: each answer ends its connection ──quiet──▶ the other connections may be closed
 */
import type { Server, ServerResponse } from "node:http";
import type { Http2Server, Http2ServerRequest, Http2ServerResponse } from "node:http2";
import net from "node:net";

const lookEveryMs = 20;

/** A socket, or a session of HTTP/2. */
interface Connection {
  readonly destroyed: boolean;
  once(event: "close", listener: () => void): unknown;
}

/** Connections on which a client may send another request, and when each was answered last. */
export class KeptConnections {
  readonly #answeredMs = new Map<Connection, number>();

  /** Call it after an answer that did not end the connection. */
  answered(connection: Connection): void {
    if (connection.destroyed) return;
    if (!this.#answeredMs.has(connection))
      connection.once("close", () => this.#answeredMs.delete(connection));
    this.#answeredMs.set(connection, performance.now());
  }

  /** Whether some open connection was answered less than `ms` ago. */
  answeredWithin(ms: number): boolean {
    const sinceMs = performance.now() - ms;
    return [...this.#answeredMs.values()].some((answeredMs) => answeredMs > sinceMs);
  }
}

/** Resolves when `isQuiet`, or after `graceMs`. */
export async function whenQuiet(isQuiet: () => boolean, graceMs: number): Promise<void> {
  const untilMs = performance.now() + graceMs;
  while (!isQuiet() && performance.now() < untilMs)
    await new Promise((resolve) => setTimeout(resolve, lookEveryMs));
}

/** Takes no new connections; resolves when the last one is closed. Node's own `close` cuts idle connections at once. */
export function stopListening(server: net.Server): Promise<void> {
  return new Promise((resolve) => void net.Server.prototype.close.call(server, () => resolve()));
}

/** The drain of an HTTP/1.1 server, and of the HTTP/2 server on the same port. Create it before the first request. */
export class HttpDrain {
  readonly #kept = new KeptConnections();
  readonly #open = new Set<ServerResponse>();
  #isDraining = false;

  constructor(server: Server, http2?: Http2Server) {
    http2?.prependListener("request", (request: Http2ServerRequest, response: Http2ServerResponse) => {
      const { session } = request.stream;
      // GOAWAY: no further stream begins on this connection, but this one is answered.
      if (this.#isDraining) session?.close();
      else if (session !== undefined) response.once("close", () => this.#kept.answered(session));
    });
    server.prependListener("request", (request, response) => {
      if (this.#isDraining) response.shouldKeepAlive = false;
      this.#open.add(response);
      // Not asked for later: a request whose body is left unread loses its socket.
      const { socket } = request;
      response.once("close", () => {
        this.#open.delete(response);
        if (response.shouldKeepAlive) this.#kept.answered(socket);
      });
    });
  }

  /** From now on each answer ends its connection. */
  begin(): void {
    this.#isDraining = true;
    for (const response of this.#open) if (!response.headersSent) response.shouldKeepAlive = false;
  }

  /** After `begin`: resolves when no connection was answered within the last `idleMs`, after `idleMs` at most. */
  quiet(idleMs: number): Promise<void> {
    return whenQuiet(() => !this.#kept.answeredWithin(idleMs), idleMs);
  }
}
