/**
 * The gateway's port: HTTP/1.1 and HTTP/2 without TLS, distinguished by the first bytes (gRPC clients begin with
 * HTTP/2's preface). Owns the sockets; keeps nothing that survives a crash.
 */
import {
  createServer as createHttp1,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from "node:http";
import { createServer as createHttp2, type Http2Server, type ServerHttp2Session } from "node:http2";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { randomBytes } from "node:crypto";
import {
  boundConnections,
  boundRequests,
  boundSessions,
  ConnectionPlaces,
  http1Bounds,
  http2Bounds,
  HttpDrain,
  placesOf,
  stopListening,
} from "@cloche/base";
import { limits, newRequestId } from "@cloche/protocol";
import { gatewayLimits } from "../limits.ts";
import type { GatewayHandler } from "./handler.ts";

export interface Listener {
  /** The port that it listens on; useful when port 0 was asked for. */
  port: number;
  /** From now on each answer ends its connection. */
  drain(): void;
  /**
   * Takes no new connections; resolves when no client of an open connection is about to call, after `idleMs` at most.
   */
  quiet(idleMs: number): Promise<void>;
  /** Stops listening, gives running calls a short time to finish, then closes all connections. */
  close(): Promise<void>;
}

const http2Preface = "PRI * HTTP/2.0";

/** Listens on `host`:`port` (0: any free one). Rejects when the port cannot be had. */
export async function listen(
  handler: GatewayHandler,
  host: string,
  port: number,
  places = new ConnectionPlaces(placesOf("gateway")),
): Promise<Listener> {
  const sockets = new Set<Socket>();
  const { http1, http2 } = serversOf(handler, places);
  const sessions = new Set<ServerHttp2Session>();
  http2.on("session", (session) => {
    sessions.add(session);
    session.once("close", () => sessions.delete(session));
    session.setTimeout(limits.idleConnectionMs, () => session.close());
    session.on("error", () => session.destroy());
  });
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
    tellApart(
      socket,
      () => http1.emit("connection", socket),
      () => http2.emit("connection", socket),
    );
  });
  boundConnections(server, places);
  const draining = new HttpDrain(http1, { http2, listener: server });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, () => resolve());
  });
  let closed: Promise<void> | undefined;
  const stop = (): Promise<void> => (closed ??= stopListening(server));
  return {
    port: (server.address() as AddressInfo).port,
    drain: () => draining.begin(),
    quiet(idleMs) {
      void stop();
      return draining.quiet(idleMs);
    },
    async close() {
      const ended = stop();
      // http1 never listened, but knows its idle connections. It does not know connections that have sent no byte yet.
      const closeIdle = (): void => {
        http1.closeIdleConnections();
        for (const socket of sockets) if (socket.bytesRead === 0) socket.destroy();
        for (const session of sessions) session.close();
      };
      closeIdle();
      const timer = setTimeout(() => {
        for (const socket of sockets) socket.destroy();
      }, gatewayLimits.closeMs);
      const idle = setInterval(closeIdle, 10);
      await ended;
      http1.close();
      clearTimeout(timer);
      clearInterval(idle);
    },
  };
}

/** The servers of both protocols, which get their connections from the listener. */
function serversOf(handler: GatewayHandler, places: ConnectionPlaces): { http1: Server; http2: Http2Server } {
  const http1 = createHttp1(
    {
      ...http1Bounds,
      // A request without a Host header is accepted.
      requireHostHeader: false,
    },
    handler,
  );
  http1.maxHeadersCount = limits.headerCount;
  http1.on("clientError", answerClientError);
  // This server never listens itself; the event starts its checks for slow and idle connections.
  http1.emit("listening");
  const http2 = createHttp2(http2Bounds, (request, response) => {
    handler(request as unknown as IncomingMessage, response as unknown as ServerResponse);
  });
  boundRequests(http1, places);
  boundSessions(http2, places);
  return { http1, http2 };
}

function tellApart(socket: Socket, toHttp1: () => void, toHttp2: () => void): void {
  const onError = (): void => void socket.destroy();
  const onTimeout = (): void => void socket.destroy();
  socket.on("error", onError);
  socket.setTimeout(limits.headersTimeoutMs, onTimeout);
  socket.once("data", (chunk: Buffer) => {
    socket.pause();
    socket.removeListener("timeout", onTimeout);
    socket.setTimeout(0);
    socket.unshift(chunk);
    const isHttp2 = chunk.subarray(0, http2Preface.length).toString("latin1") === http2Preface;
    if (isHttp2) toHttp2();
    else toHttp1();
    // The server has its listeners on the socket now; the bytes put back are the first that it gets.
    process.nextTick(() => socket.resume());
  });
}

const headersTooMany = `the request has more than ${limits.headerCount} headers or ${limits.headerBytes} bytes of them`;

/**
 * Answers requests that Node's parser refuses, which never reach the handler, with an error body of the usual shape.
 */
function answerClientError(error: NodeJS.ErrnoException, socket: import("node:stream").Duplex): void {
  if (error.code === "ECONNRESET" || !socket.writable) return void socket.destroy();
  const [status, reason, code, message] =
    error.code === "HPE_HEADER_OVERFLOW"
      ? [431, "Request Header Fields Too Large", "resource_exhausted", headersTooMany]
      : error.code === "ERR_HTTP_REQUEST_TIMEOUT"
        ? [408, "Request Timeout", "deadline_exceeded", "the request did not arrive in time"]
        : [400, "Bad Request", "invalid_argument", "the request is not valid HTTP"];
  const body = JSON.stringify({ code, message });
  socket.end(
    `HTTP/1.1 ${status} ${reason}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n` +
      `x-request-id: ${newRequestId(randomBytes)}\r\nconnection: close\r\n\r\n${body}`,
  );
}
