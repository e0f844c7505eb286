/**
 * HTTP/2 without TLS, with prior knowledge, to a server on a port of a sandbox: one connection for all streams, closed
 * when idle for a while. The server is not trusted: unread bytes and headers are limited, and it may not push.
 *
 *   none ──acquire──▶ opening ──its SETTINGS──▶ open ──GOAWAY or end──▶ none
 *                        └── anything else, or nothing in time: Http2RefusedError
 */
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type ClientSessionRequestOptions,
  connect,
} from "node:http2";
import { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { boundControlFrames, boundOtherFrames, paceStream, type PieceRate } from "@cloche/base";
import type { Dial } from "./agent-pool.ts";
import type { EdgeLimits } from "../edge-limits.ts";

/** The server on the port does not speak HTTP/2. */
export class Http2RefusedError extends Error {}

const sessionMemoryMb = 64;

export class Http2Port {
  readonly #dial: Dial;
  readonly #work: PieceRate;
  readonly #limits: EdgeLimits;
  #open: Promise<ClientHttp2Session> | undefined;
  /** Open connections, with their numbers of streams. */
  readonly #sessions = new Map<ClientHttp2Session, number>();
  #closed: unknown;

  constructor(dial: Dial, work: PieceRate, limits: EdgeLimits) {
    this.#dial = dial;
    this.#work = work;
    this.#limits = limits;
  }

  get isOpen(): boolean {
    return this.#open !== undefined || this.#sessions.size > 0;
  }

  /** A connection for one more stream. */
  async acquire(): Promise<ClientHttp2Session> {
    if (this.#closed !== undefined) throw this.#closed;
    if (this.#open === undefined) {
      const opening = this.#dialed().then((socket) => this.#greeted(socket));
      this.#open = opening;
      opening.then(
        (session) => {
          for (const event of ["close", "goaway", "timeout"])
            session.once(event, () => this.#forget(opening));
        },
        () => this.#forget(opening),
      );
    }
    return this.#open;
  }

  /** Opens a stream on a connection from acquire(). Throws when the connection is gone. */
  request(
    session: ClientHttp2Session,
    headers: readonly string[],
    options: ClientSessionRequestOptions,
  ): ClientHttp2Stream {
    const stream = session.request(headers, options);
    paceStream(stream, session.socket as Socket, this.#work);
    const add = (count: number): void => {
      const streams = this.#sessions.get(session);
      if (streams !== undefined) this.#sessions.set(session, streams + count);
    };
    add(1);
    stream.once("close", () => add(-1));
    return stream;
  }

  #forget(opening: Promise<ClientHttp2Session>): void {
    if (this.#open === opening) this.#open = undefined;
  }

  #dialed(): Promise<Duplex> {
    const { promise, resolve, reject } = Promise.withResolvers<Duplex>();
    this.#dial(
      (error, socket) => (socket === undefined ? reject(error) : resolve(socket)),
      () => true,
    );
    return promise;
  }

  /** Resolves when the server's settings arrive: before that, it may not understand HTTP/2. */
  #greeted(socket: Duplex): Promise<ClientHttp2Session> {
    const { agentAnswerMs, headerCount, streamWindowBytes, connectionWindowBytes, agentIdleMs } =
      this.#limits;
    const { promise, resolve, reject } = Promise.withResolvers<ClientHttp2Session>();
    const session = connect("http://sandbox", {
      createConnection: () => socket,
      maxSessionMemory: sessionMemoryMb,
      maxHeaderListPairs: headerCount * 2,
      maxReservedRemoteStreams: 0,
      settings: { enablePush: false, initialWindowSize: streamWindowBytes },
    });
    this.#sessions.set(session, 0);
    const refuse = (cause?: unknown): void => {
      clearTimeout(deadline);
      reject(new Http2RefusedError("no HTTP/2 is spoken there", { cause }));
      session.destroy();
      socket.destroy();
    };
    const deadline = setTimeout(refuse, agentAnswerMs);
    session.once("remoteSettings", () => {
      clearTimeout(deadline);
      session.setLocalWindowSize(connectionWindowBytes);
      if (this.#closed === undefined) resolve(session);
      else refuse(this.#closed);
    });
    boundControlFrames(session, this.#limits.controlFramesPerSecond);
    if (socket instanceof Socket) boundOtherFrames(session, socket);
    session.setTimeout(agentIdleMs);
    session.on("timeout", () => {
      if (this.#sessions.get(session) === 0) session.destroy();
      else session.close();
    });
    session.on("error", refuse);
    // The tunnel may still accept bytes, but the server is gone.
    socket.once("end", () => session.destroy());
    session.once("close", () => {
      this.#sessions.delete(session);
      refuse();
    });
    return promise;
  }

  close(cause: unknown): void {
    this.#closed = cause;
    for (const session of this.#sessions.keys()) session.destroy();
  }
}
