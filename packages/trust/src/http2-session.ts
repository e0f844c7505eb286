/**
 * One HTTP/2 connection to another part of the cluster, for Connect's client.
 *
 *   none ──call──▶ connecting ──▶ open ──broken, closed by the other side, or no answer to a PING──▶ none
 *                     └── refused, or no handshake in time: the calls that wait fail ──▶ none
 *
 * Replaces Connect's own manager, which sends a PING on a destroyed session: that throws in a timer and ends the
 * process.
 */
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  type OutgoingHttpHeaders,
} from "node:http2";
import type { TLSSocket } from "node:tls";
import { boundControlFrames, boundOtherFrames, countStream, listenerBounds } from "@cloche/base";
import { Code, ConnectError } from "@connectrpc/connect";

const pingEveryMs = 5_000;
const windowBytes = 1024 * 1024;

export class Http2Session {
  readonly authority: string;
  readonly #dial: () => TLSSocket;
  #opening: Promise<ClientHttp2Session> | undefined;
  #open: ClientHttp2Session | undefined;

  /** `authority`: `https://host:port`. `dial`: opens a TLS connection, which may still be connecting. */
  constructor(authority: string, dial: () => TLSSocket) {
    this.authority = authority;
    this.#dial = dial;
  }

  async request(
    method: string,
    path: string,
    headers: OutgoingHttpHeaders,
    options: Parameters<ClientHttp2Session["request"]>[1],
  ): Promise<ClientHttp2Stream> {
    const session = await this.#session();
    const stream = session.request({ ...headers, ":method": method, ":path": path }, options);
    countStream(stream);
    return stream;
  }

  /** Required by Connect's interface. Not used: PINGs are sent in any case. */
  notifyResponseByteRead(): void {}

  /** Ends calls under way. The next call connects again. */
  close(): void {
    this.#open?.destroy();
    void this.#opening?.then(
      (session) => session.destroy(),
      () => undefined,
    );
  }

  async #session(): Promise<ClientHttp2Session> {
    const open = this.#open;
    if (open !== undefined && !open.closed && !open.destroyed) return open;
    this.#opening ??= this.#connect().finally(() => {
      this.#opening = undefined;
    });
    return await this.#opening;
  }

  async #connect(): Promise<ClientHttp2Session> {
    const settings = { initialWindowSize: windowBytes, enablePush: false };
    const session = connect(this.authority, { createConnection: this.#dial, settings });
    await new Promise<void>((resolve, reject) => {
      session.once("connect", () => resolve());
      const failed = (cause?: unknown): void => {
        const why = cause instanceof Error ? `: ${cause.message}` : "";
        const message = `${this.authority} cannot be reached${why}`;
        reject(new ConnectError(message, Code.Unavailable, undefined, undefined, cause));
      };
      session.on("error", failed).once("close", failed);
    });
    this.#open = session;
    // Without an error, Connect's client would wait for its calls for ever.
    const flooded = (): void =>
      session.destroy(new ConnectError("the other side floods this connection", Code.Unavailable));
    boundControlFrames(session, listenerBounds.controlFramesPerSecond, flooded);
    boundOtherFrames(session, session.socket as TLSSocket, flooded);
    watch(session);
    return session;
  }
}

/** Ends a session whose other side is gone without closing it. */
function watch(session: ClientHttp2Session): void {
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
  session.once("close", () => clearInterval(pinging));
}
