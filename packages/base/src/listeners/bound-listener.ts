/**
 * Bounds a listening server: places for its connections, and for HTTP the time of heads and bodies. Every server that
 * listens for others goes through here (the edge gives its own parser the same places).
 */
import type { IncomingMessage, Server as HttpServer, ServerOptions, ServerResponse } from "node:http";
import type {
  Http2Server,
  ServerHttp2Session,
  ServerHttp2Stream,
  ServerOptions as Http2Options,
} from "node:http2";
import type { Server, Socket } from "node:net";
import { limits } from "@cloche/protocol";
import { listenerBounds, type ListenerName, placesOf } from "./bounds.ts";
import { addressOf, connectionKey, ConnectionPlaces } from "./connection-places.ts";
import { boundControlFrames, boundLostStreams } from "./control-frames.ts";
import { answerInTurn } from "./pipelined.ts";
import { PacedRequest } from "./paced-request.ts";
import { boundOtherFrames } from "./other-frames.ts";
import { paceStream } from "./paced-streams.ts";

/** Settings of Node's HTTP/1.1 server for the times of heads, bodies and idle connections, and for small pieces of bodies. */
export const http1Bounds = {
  IncomingMessage: PacedRequest,
  maxHeaderSize: limits.headerBytes,
  headersTimeout: listenerBounds.headMs,
  requestTimeout: listenerBounds.bodyMs,
  keepAliveTimeout: listenerBounds.idleMs,
  connectionsCheckingInterval: 5_000,
} satisfies ServerOptions<typeof PacedRequest>;

/** Settings of Node's HTTP/2 server for streams, headers, resets and unread bytes. */
export const http2Bounds = {
  maxSessionMemory: listenerBounds.sessionMemoryMb,
  maxHeaderListPairs: limits.headerCount,
  streamResetBurst: listenerBounds.streamResetBurst,
  streamResetRate: listenerBounds.streamResetsPerSecond,
  settings: {
    enablePush: false,
    maxConcurrentStreams: listenerBounds.streams,
    maxHeaderListSize: limits.headerBytes,
    initialWindowSize: listenerBounds.streamWindowBytes,
  },
} satisfies Http2Options;

/** Gives each connection of the server a place, or closes it. */
export function boundConnections(server: Server, places: ConnectionPlaces): void {
  server.on("connection", (socket: Socket) => {
    const key = connectionKey(socket);
    if (!places.take(key, () => socket.destroy(), addressOf(socket))) return void socket.destroy();
    socket.once("close", () => places.leave(key));
  });
}

/** A connection keeps its place while a request is answered, and is answered one request at a time. */
export function boundRequests(server: HttpServer, places: ConnectionPlaces): void {
  answerInTurn(server);
  server.prependListener("request", (request: IncomingMessage, response: ServerResponse) => {
    const answered = places.ask(connectionKey(request.socket), () => isKnown(request));
    response.once("close", answered);
    watchBody(request, response);
  });
}

/** Cuts a connection off whose body stops arriving although it is read. */
function watchBody(request: IncomingMessage, response: ServerResponse): void {
  const { socket } = request;
  let seen = -1;
  const look = setInterval(() => {
    if (request.complete || socket.destroyed) return clearInterval(look);
    if (socket.bytesRead === seen && request.readableLength === 0) socket.destroy();
    seen = socket.bytesRead;
  }, listenerBounds.bodyStallMs);
  look.unref();
  response.once("close", () => clearInterval(look));
}

const isWhole = (stream: ServerHttp2Stream): boolean =>
  stream.endAfterHeaders || stream.readableEnded || stream.destroyed || stream.state.remoteClose === 1;

/**
 * Answers `Expect: 100-continue` of HTTP/2 clients. Node would answer by itself, and throw where nobody catches it when
 * the stream is over by then: the process would end.
 */
export function answerExpectations(server: Http2Server): void {
  server.on("checkContinue", (request, response) => {
    const { stream } = response;
    if (stream.destroyed || stream.closed) return;
    response.writeContinue();
    server.emit("request", request, response);
  });
}

/** Bounds what only HTTP/2 has: control frames, and a request that is answered before it is complete. */
export function boundSessions(server: Http2Server, places: ConnectionPlaces): void {
  answerExpectations(server);
  server.prependListener("session", (session: ServerHttp2Session) => {
    boundControlFrames(session, listenerBounds.controlFramesPerSecond);
    boundLostStreams(session, listenerBounds.streamResetBurst, listenerBounds.streamResetsPerSecond);
    const socket = session.socket as Socket;
    boundOtherFrames(session, socket);
    const key = connectionKey(socket);
    session.on("stream", (stream) => {
      paceStream(stream, socket);
      const answered = places.ask(key, () => isWhole(stream));
      stream.once("close", answered);
      stream.once("finish", () => {
        if (isWhole(stream)) return;
        // Read and dropped: unread bytes of one stream would keep others from sending.
        stream.resume();
        const cut = setTimeout(() => stream.close(), listenerBounds.lingerMs);
        stream.once("close", () => clearTimeout(cut));
      });
    });
  });
}

const known = new WeakSet<IncomingMessage>();
const isKnown = (request: IncomingMessage): boolean => request.complete || known.has(request);

/** The caller's credential is valid: the connection keeps its place although the body is still on its way. */
export const callerIsKnown = (request: IncomingMessage): void => void known.add(request);

export const isKnownCaller = (request: IncomingMessage): boolean => known.has(request);

/** Bounds an HTTP/1.1 server that listens itself; create it with `http1Bounds`. */
export function boundHttp(
  server: HttpServer,
  name: ListenerName,
  places = new ConnectionPlaces(placesOf(name)),
): void {
  server.maxHeadersCount = limits.headerCount;
  boundConnections(server, places);
  boundRequests(server, places);
}
