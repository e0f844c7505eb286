/**
 * Connect services over HTTP/2 on the sockets of a ClusterPort. Handlers get the caller's identity from `callerOf`; the
 * certificate is read once for each connection. A connection whose other side does not answer a PING is ended, so that
 * no streams stay of a computer that is gone.
 */
import { once } from "node:events";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import type { TLSSocket } from "node:tls";
import {
  answerExpectations,
  boundControlFrames,
  boundedLog,
  boundOtherFrames,
  countStream,
  http2Bounds,
  listenerBounds,
  type Log,
  memberBounds,
} from "@cloche/base";
import {
  Code,
  ConnectError,
  type ConnectRouter,
  createContextKey,
  createContextValues,
  type HandlerContext,
  type Interceptor,
} from "@connectrpc/connect";
import { type Identity, identityOf, type Role, uriOf } from "./identity.ts";
import { type MemberBounds, MemberCalls } from "./member-calls.ts";
import { type RpcHandler, rpcHandler } from "./rpc-handler.ts";

const pingEveryMs = 5_000;
/** Time for calls under way to end after `close`. */
const closeMs = 2_000;

const callerKey = createContextKey<Identity | undefined>(undefined, { description: "caller" });

/** The caller's identity; undefined: the caller has no certificate. */
export const callerOf = ({ values }: HandlerContext): Identity | undefined => values.get(callerKey);

/** The caller's id if its role is `role`; else undefined. */
export function idOf(context: HandlerContext, role: Role): string | undefined {
  const caller = callerOf(context);
  return caller?.role === role ? caller.id : undefined;
}

/**
 * Refuses the calls of a service to callers of all roles but these: `router.service(…, { interceptors:
 * [onlyFor("edge")] })`.
 */
export const onlyFor =
  (...allowed: readonly Role[]): Interceptor =>
  (next) =>
  async (request) => {
    const caller = request.contextValues.get(callerKey);
    if (caller !== undefined && allowed.includes(caller.role)) return await next(request);
    throw new ConnectError(
      `this call is for parts of the cluster with the role ${allowed.join(" or ")}`,
      Code.PermissionDenied,
    );
  };

export class RpcServer {
  readonly #server: Http2Server;
  /** Serves callers without a certificate: one stream, and little in memory. */
  readonly #strangers: Http2Server;
  readonly #sessions = new Set<ServerHttp2Session>();
  readonly #sockets = new Set<TLSSocket>();
  readonly #callers = new WeakMap<object, Identity>();
  readonly #members: MemberCalls;

  /** `members`: bounds of callers with a certificate; default: `memberBounds`. */
  constructor(routes: (router: ConnectRouter) => void, log: Log, members?: Partial<MemberBounds>) {
    this.#members = new MemberCalls(members);
    const strangersLog = boundedLog(log);
    const handler = (readMaxBytes: number): RpcHandler =>
      rpcHandler({
        routes,
        readMaxBytes,
        log: strangersLog,
        contextValues: (request) => {
          const { stream } = request as unknown as { stream?: { session?: object } };
          return createContextValues().set(callerKey, this.#callers.get(stream?.session ?? this));
        },
      });
    const ofMembers = {
      ...http2Bounds.settings,
      maxConcurrentStreams: members?.streams ?? memberBounds.streams,
      initialWindowSize: memberBounds.streamWindowBytes,
    };
    const { streamResetBurst } = memberBounds;
    const streamResetRate = members?.streamResetsPerSecond ?? memberBounds.streamResetsPerSecond;
    this.#server = createServer(
      { ...http2Bounds, streamResetBurst, streamResetRate, settings: ofMembers },
      handler(memberBounds.requestBytes),
    );
    const { strangerBytes } = listenerBounds;
    const ofStrangers = {
      ...http2Bounds.settings,
      maxConcurrentStreams: 1,
      initialWindowSize: strangerBytes,
    };
    const strangers = { ...http2Bounds, maxSessionMemory: 1, settings: ofStrangers };
    this.#strangers = createServer(strangers, handler(strangerBytes));
    for (const server of [this.#server, this.#strangers]) {
      server.on("sessionError", () => undefined);
      answerExpectations(server);
    }
  }

  /** Serves HTTP/2 on the socket. */
  serve(socket: TLSSocket): void {
    socket.on("error", () => socket.destroy());
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
    const server = identityOf(socket) === undefined ? this.#strangers : this.#server;
    const opened = (session: ServerHttp2Session): void => this.#opened(session, socket);
    server.once("session", opened).emit("connection", socket);
    server.off("session", opened);
  }

  #opened(session: ServerHttp2Session, socket: TLSSocket): void {
    this.#sessions.add(session);
    const caller = identityOf(socket);
    boundControlFrames(session, listenerBounds.controlFramesPerSecond);
    boundOtherFrames(session, socket);
    if (caller === undefined) session.on("stream", countStream);
    else {
      this.#callers.set(session, caller);
      this.#members.opened(uriOf(caller), session, socket);
    }
    let isAnswered = true;
    const pinging = setInterval(() => {
      if (session.closed || session.destroyed) return clearInterval(pinging);
      if (!isAnswered) return session.destroy(new ConnectError("no answer to a ping", Code.Unavailable));
      isAnswered = false;
      session.ping(() => {
        isAnswered = true;
      });
    }, pingEveryMs);
    pinging.unref();
    session.on("error", () => session.destroy());
    session.once("close", () => {
      clearInterval(pinging);
      this.#sessions.delete(session);
    });
  }

  /** How many connections are open. */
  get connections(): number {
    return this.#sessions.size;
  }

  /**
   * Gives calls under way a short time to end. Then destroys the sockets, not the sessions: for a session that was
   * asked to close or that its other side has closed, Node only ends the socket, and waits for a computer that may be
   * gone.
   */
  async close(): Promise<void> {
    const closed = [...this.#sockets].map((socket) => once(socket, "close"));
    for (const session of this.#sessions) session.close();
    const timer = setTimeout(() => {
      for (const socket of this.#sockets) socket.destroy();
    }, closeMs);
    await Promise.all(closed);
    clearTimeout(timer);
  }
}
