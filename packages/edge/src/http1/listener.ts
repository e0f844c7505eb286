/**
 * One listening socket of the edge, with TLS, or without TLS on the loopback: its connections, and node's HTTP/1.1
 * server for them. Owns every socket that it accepted. Called by EdgeServer only.
 */
import http, { type IncomingMessage, type ServerResponse } from "node:http";
import https from "node:https";
import { type AddressInfo, isIP, type Socket } from "node:net";
import {
  boundConnections,
  boundHandshakeMessages,
  type ConnectionPlaces,
  PacedRequest,
  stopListening,
} from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { ClientConnections } from "./client-connections.ts";
import { isTls } from "../exchange/client-wire.ts";
import type { EdgeLimits } from "../edge-limits.ts";
import { readFirstBytes } from "../exchange/first-bytes.ts";
import { answerRaw } from "../exchange/raw-answer.ts";
import { newId } from "../exchange/request-ids.ts";

export interface TlsFiles {
  /** PEM: the certificate for `*.<base domain>` and its chain. */
  cert: string;
  key: string;
}

/** Handlers of requests, connections and errors. */
export interface ListenerHandlers {
  /** A connection before its handshake. */
  accepted(socket: Socket): void;
  request(request: IncomingMessage, response: ServerResponse, expectsContinue: boolean): void;
  upgrade(request: IncomingMessage, socket: Socket, first: Buffer): void;
  /** A connection that speaks HTTP/2. */
  http2(socket: Socket): void;
  /** The parser found bytes that are not a request. */
  malformed(error: NodeJS.ErrnoException, socket: Socket): void;
  handshakeFailed(error: Error): void;
}

/** Errors of a request line that never reached node's parser. */
const lineFailures = {
  timeout: new ClocheError("deadline_exceeded", "the request's head did not arrive in time"),
  ended: new ClocheError("invalid_argument", "the request ended before it was whole"),
};

export class Listener {
  readonly #server: http.Server | https.Server;
  readonly #clients: ClientConnections;
  readonly #places: ConnectionPlaces;
  readonly #limits: EdgeLimits;
  readonly #sockets = new Set<Socket>();

  private constructor(
    server: http.Server | https.Server,
    clients: ClientConnections,
    places: ConnectionPlaces,
    limits: EdgeLimits,
    handlers: ListenerHandlers,
  ) {
    this.#server = server;
    this.#clients = clients;
    this.#places = places;
    this.#limits = limits;
    this.#serve(handlers);
  }

  static tls(
    tls: TlsFiles,
    clients: ClientConnections,
    places: ConnectionPlaces,
    limits: EdgeLimits,
    handlers: ListenerHandlers,
  ): Listener {
    const server = https.createServer({
      ...tls,
      ALPNProtocols: ["h2", "http/1.1"],
      minVersion: "TLSv1.2",
      handshakeTimeout: limits.handshakeTimeoutMs,
      allowHalfOpen: true,
      ...httpSettings(limits),
    });
    server.on("tlsClientError", (error) => handlers.handshakeFailed(error));
    return new Listener(server, clients, places, limits, handlers);
  }

  /** Listens without TLS, on an address of the loopback. */
  static plain(
    address: string,
    clients: ClientConnections,
    places: ConnectionPlaces,
    limits: EdgeLimits,
    handlers: ListenerHandlers,
  ): Listener {
    if (!isLoopback(address))
      throw new Error(`${address} is not of the loopback; nothing is served there without TLS`);
    return new Listener(http.createServer(httpSettings(limits)), clients, places, limits, handlers);
  }

  #serve(handlers: ListenerHandlers): void {
    const server = this.#server;
    const { lingerMs } = this.#limits;
    server.timeout = 0;
    // Node would drop headers beyond a limit silently; the router counts them and refuses the request.
    server.maxHeadersCount = 0;
    // A FIN alone does not mean that the client went away; ClientConnections decides.
    (server as http.Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;
    // Replaces node's own listener, which would parse every connection at once.
    const opened = server instanceof https.Server ? "secureConnection" : "connection";
    const toParser = server.listeners(opened) as ((socket: Socket) => void)[];
    server.removeAllListeners(opened);
    server.on(opened, (socket: Socket) => {
      if (isTls(socket)) boundHandshakeMessages(socket);
      if (isTls(socket) && socket.alpnProtocol === "h2") handlers.http2(socket);
      else this.#open(socket, handlers, () => toParser.forEach((listener) => listener.call(server, socket)));
    });
    boundConnections(server, this.#places);
    server.on("connection", (socket: Socket) => {
      if (socket.destroyed) return;
      this.#sockets.add(socket);
      handlers.accepted(socket);
      socket.once("close", () => this.#sockets.delete(socket));
    });
    server.on("request", (request, response) => handlers.request(request, response, false));
    server.on("checkContinue", (request, response) => handlers.request(request, response, true));
    server.on("checkExpectation", (request, response) => handlers.request(request, response, false));
    server.on("upgrade", (request, socket, first) => handlers.upgrade(request, socket as Socket, first));
    server.on("connect", (_request, socket) => {
      answerRaw(socket, new ClocheError("invalid_argument", "CONNECT is not offered"), newId(), lingerMs);
    });
    server.on("clientError", (error, socket) => handlers.malformed(error, socket as Socket));
  }

  #open(socket: Socket, handlers: ListenerHandlers, toParser: () => void): void {
    this.#clients.add(socket);
    readFirstBytes(socket, {
      // Over TLS, the handshake (ALPN) agrees on HTTP/2.
      mayBeHttp2: !isTls(socket),
      maxBytes: this.#limits.headerBytes,
      timeoutMs: this.#limits.headersTimeoutMs,
      onKnown: (protocol) => {
        if (protocol === "http2") {
          this.#clients.remove(socket);
          handlers.http2(socket);
          return;
        }
        toParser();
        socket.resume();
      },
      onFailure: (why) => {
        if (why === "none") socket.end();
        else answerRaw(socket, lineFailures[why], newId(), this.#limits.lingerMs);
      },
    });
  }

  /** Returns the port. Rejects when the port is taken. */
  async listen(port: number, host: string | undefined): Promise<number> {
    const server = this.#server;
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen({ port, host }, () => {
        server.off("error", reject);
        resolve();
      });
    });
    return (server.address() as AddressInfo).port;
  }

  /** New connections get the new certificate. */
  setTls(tls: TlsFiles): void {
    if (this.#server instanceof https.Server)
      this.#server.setSecureContext({ ...tls, minVersion: "TLSv1.2" });
  }

  get listening(): boolean {
    return this.#server.listening;
  }

  /** Stops listening; resolves when the last connection is gone. */
  close(): Promise<void> {
    return stopListening(this.#server);
  }

  destroyConnections(): void {
    for (const socket of this.#sockets) socket.destroy();
    // This also ends node's timer that checks connections.
    this.#server.close();
  }
}

function httpSettings(limits: EdgeLimits): http.ServerOptions<typeof PacedRequest> & {
  shouldUpgradeCallback: (request: IncomingMessage) => boolean;
} {
  return {
    IncomingMessage: PacedRequest,
    maxHeaderSize: limits.headerBytes,
    headersTimeout: limits.headersTimeoutMs,
    requestTimeout: 0,
    keepAliveTimeout: limits.idleConnectionMs,
    connectionsCheckingInterval: Math.min(limits.headersTimeoutMs, 5_000),
    highWaterMark: limits.clientBufferBytes,
    requireHostHeader: false,
    insecureHTTPParser: false,
    noDelay: true,
    keepAlive: true,
    keepAliveInitialDelay: 30_000,
    // Other upgrades (such as h2c) are not offered: such a request is answered as if it had no Upgrade.
    shouldUpgradeCallback: (request) => request.headers.upgrade?.toLowerCase() === "websocket",
  };
}

const isLoopback = (address: string): boolean =>
  address === "::1" || (isIP(address) === 4 && address.startsWith("127."));
