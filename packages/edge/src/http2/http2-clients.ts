/**
 * The clients' HTTP/2 connections. Each stream is an exchange, and none waits for another. The end of its stream shows
 * that a client went away.
 *
 *   open ──stream──▶ exchange ──answered──▶ over        without a stream for a while, or answered while the edge drains ──GOAWAY──▶ closed
 *    │                 └── reset by the client, or the connection ended: Exchange.clientGone
 *    └── too many resets, pings or settings ──GOAWAY (ENHANCE_YOUR_CALM)──▶ closed
 */
import {
  constants,
  type Http2Session,
  performServerHandshake,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import type { IncomingHttpHeaders } from "node:http2";
import type { Socket } from "node:net";
import {
  boundControlFrames,
  boundLostStreams,
  boundOtherFrames,
  type ConnectionPlaces,
  paceStream,
} from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { watchBody } from "../exchange/body-stall.ts";
import { askFor } from "../exchange/connection-places.ts";
import { drainRest } from "../exchange/drain-rest.ts";
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "../exchange/exchange.ts";
import { Http2Request } from "./http2-request.ts";
import { Http2Response, Http2Wire } from "./http2-response.ts";
import { endGently } from "../exchange/raw-answer.ts";

/** Begins an exchange and routes it. */
export type BeginHttp2 = (request: Http2Request, response: Http2Response, wire: Http2Wire) => Exchange;

/** Memory that node may use for one connection, bodies under way included. */
const sessionMemoryMb = 64;

interface Connection {
  exchanges: Set<Exchange>;
  /** Requests that were answered before they were complete, and whose rest still arrives. */
  rests: number;
  /** Closes the connection when it has no exchange and no such rest; restarted when the last of these is over. */
  idle: NodeJS.Timeout;
}

export class Http2Clients {
  readonly #connections = new Map<ServerHttp2Session, Connection>();
  readonly #limits: EdgeLimits;
  readonly #places: ConnectionPlaces;
  readonly #begin: BeginHttp2;
  readonly #onOver: (exchange: Exchange) => void;
  /** Connections with their full window. */
  readonly #wide = new WeakSet<Http2Session>();
  #isDraining = false;

  constructor(
    limits: EdgeLimits,
    places: ConnectionPlaces,
    begin: BeginHttp2,
    onOver: (exchange: Exchange) => void,
  ) {
    this.#limits = limits;
    this.#places = places;
    this.#begin = begin;
    this.#onOver = onOver;
  }

  /** A connection that speaks HTTP/2: by ALPN, or by its first bytes. */
  take(socket: Socket): void {
    const limits = this.#limits;
    socket.on("error", () => undefined);
    const session = performServerHandshake(socket, {
      maxSessionMemory: sessionMemoryMb,
      // More than are allowed, so that a request with a few too many gets an error answer.
      maxHeaderListPairs: limits.headerCount * 2,
      streamResetBurst: limits.streamResetBurst,
      streamResetRate: limits.streamResetsPerSecond,
      settings: {
        enableConnectProtocol: true,
        enablePush: false,
        maxConcurrentStreams: limits.streams,
        maxHeaderListSize: limits.headerBytes,
        initialWindowSize: limits.streamWindowBytes,
      },
    });
    this.#add(session, socket);
  }

  #add(session: ServerHttp2Session, socket: Socket): void {
    // Only requests keep a connection open, not pings and other frames.
    const exchanges = new Set<Exchange>();
    const close = (): void => {
      if (exchanges.size > 0 || connection.rests > 0) return;
      session.close();
      endGently(socket, this.#limits.lingerMs);
    };
    const idle = setTimeout(close, this.#limits.idleConnectionMs);
    const connection: Connection = { exchanges, rests: 0, idle };
    this.#connections.set(session, connection);
    session.on("stream", (stream, headers, _flags, rawHeaders) =>
      this.#stream(stream, headers, rawHeaders as unknown as string[], socket, connection),
    );
    boundControlFrames(session, this.#limits.controlFramesPerSecond);
    boundLostStreams(session, this.#limits.streamResetBurst, this.#limits.streamResetsPerSecond);
    boundOtherFrames(session, socket);
    session.on("error", () => undefined);
    session.once("close", () => {
      clearTimeout(idle);
      this.#connections.delete(session);
      socket.destroy();
    });
    // An HTTP/2 client never shuts only its sending side: it went away.
    socket.once("end", () => {
      const cut = setTimeout(() => socket.destroy(), this.#limits.halfClosedExecGraceMs);
      socket.once("close", () => clearTimeout(cut));
    });
  }

  #stream(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    rawHeaders: readonly string[],
    socket: Socket,
    connection: Connection,
  ): void {
    stream.on("error", () => undefined);
    paceStream(stream, socket);
    const request = new Http2Request(stream, headers, rawHeaders, socket, () => this.#widen(stream.session));
    const response = new Http2Response(request);
    const exchange = this.#begin(request, response, new Http2Wire(stream, socket));
    const { exchanges, idle } = connection;
    exchanges.add(exchange);
    // GOAWAY: no further stream begins on this connection, but this one is answered.
    if (this.#isDraining) stream.session?.close();
    const answered = askFor(exchange, this.#places, this.#limits);
    stream.once("close", answered);
    const endWatch = exchange.hasBody
      ? watchBody(exchange, this.#limits, () => request.bodyBytes)
      : undefined;
    const over = (): void => {
      if (!exchanges.delete(exchange)) return;
      endWatch?.();
      // A stream that was upgraded to another protocol keeps the place.
      if (!exchange.upgraded) answered();
      exchange.over = true;
      this.#onOver(exchange);
      // The request was answered before it was complete: tell the client to stop sending (RFC 9113, 8.1).
      if (!request.complete && !exchange.upgraded) {
        connection.rests += 1;
        drainRest(request, this.#limits, () => {
          connection.rests -= 1;
          idle.refresh();
          stream.close(constants.NGHTTP2_NO_ERROR);
        });
      }
      if (exchanges.size === 0) idle.refresh();
    };
    exchange.onOver = over;
    response.once("finish", over);
    stream.once("aborted", () => exchange.clientGone());
    response.once("close", () => {
      exchange.clientGone();
      over();
    });
    if (request.problem !== undefined) exchange.refuse(new ClocheError("invalid_argument", request.problem));
  }

  /** A connection may send little until a body is read, which is after its token was checked. */
  #widen(session: Http2Session | undefined): void {
    if (session === undefined || session.destroyed || this.#wide.has(session)) return;
    this.#wide.add(session);
    session.setLocalWindowSize(this.#limits.connectionWindowBytes);
  }

  /**
   * Open streams go on, and the client uses another connection for its next requests. A connection without streams gets
   * GOAWAY with its next stream: an immediate GOAWAY would refuse a request that the client is sending at this moment.
   */
  drain(): void {
    this.#isDraining = true;
    for (const [session, { exchanges }] of this.#connections) if (exchanges.size > 0) session.close();
  }

  /** Ends every connection as done by the edge: programs in sandboxes run on. */
  closeAll(): void {
    for (const [session, { exchanges }] of this.#connections) {
      for (const exchange of exchanges) exchange.over = true;
      session.destroy();
    }
  }
}
