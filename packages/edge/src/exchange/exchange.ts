/**
 * One request of a client and its answer, from the request's head until both are over. Knows how to answer, how to fail
 * and whether the client went away; knows nothing of sandboxes.
 *
 *   open ──answer begun──▶ answering ──▶ finished
 *     └──────────────┬──────────┘
 *                    ├── client went away: `onGone` is called (which ends an exec)
 *                    └── the edge cut it (agent or edge failed): `onGone` is not called
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { ClocheError, dataPlaneStatus, traceparentHeader, traceparentOf } from "@cloche/protocol";
import { type ClientWire, isTls, servernameOf } from "./client-wire.ts";
import type { RawHeaders } from "./headers.ts";

const traceHeaders: ReadonlySet<string> = new Set([traceparentHeader, "tracestate"]);
const onePieceBytes = 8 * 1024;

export class Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly wire: ClientWire;
  readonly requestId: string;
  readonly hasBody: boolean;
  /** The client waits for 100 Continue before it sends its body. */
  readonly expectsContinue: boolean;
  /** Set for an Upgrade request: bytes that followed its head. */
  readonly upgradeFirst: Buffer | undefined;
  readonly startedMs: number;
  sandboxId = "";
  /** The request is for a server of the sandbox's own, not for the data plane. */
  forPort = false;
  /** The request asks for the edge's own health; not logged or measured. */
  isHealthCheck = false;
  /** Whoever answers writes the log line. */
  logsItself = false;
  /** The caller's W3C trace context; empty: none, or not valid. */
  readonly traceparent: string;
  /** Headers added to every answer but 101: CORS, and those that file-link-access.ts adds. */
  finalHeaders: RawHeaders = [];
  /** Called once when the client went away before the answer was over. */
  onGone: (() => void) | undefined;
  /** Called when the connection was upgraded, which ends the exchange. */
  onOver: (() => void) | undefined;
  /** The two ends of the upgraded connection. */
  joined: readonly [Duplex, Duplex] | undefined;
  /** How often the sandbox moved before anything was sent to it. */
  moves = 0;
  continued = false;
  gone = false;
  over = false;
  /** The connection was upgraded to another protocol. */
  upgraded = false;
  /** A credential of the caller was found good. What others do is logged at a bounded rate. */
  callerIsKnown = false;
  /** Why the exchange failed, for the log. */
  failure: ClocheError | undefined;
  #bodyOver: boolean;
  #refused = false;
  readonly #whenEnded: (() => void)[] = [];
  #isEnded = false;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    options: {
      wire: ClientWire;
      requestId: string;
      expectsContinue: boolean;
      upgradeFirst: Buffer | undefined;
      startedMs: number;
    },
  ) {
    this.request = request;
    this.response = response;
    this.wire = options.wire;
    this.requestId = options.requestId;
    this.expectsContinue = options.expectsContinue;
    this.upgradeFirst = options.upgradeFirst;
    this.startedMs = options.startedMs;
    const { headers } = request;
    this.traceparent = traceparentOf(headers["traceparent"]);
    this.hasBody =
      options.upgradeFirst === undefined &&
      (headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0);
    this.#bodyOver = !this.hasBody;
  }

  /** Path without the query, which may hold secrets. */
  get path(): string {
    const url = this.request.url ?? "";
    const query = url.indexOf("?");
    return query === -1 ? url : url.slice(0, query);
  }

  /** The request came without TLS. */
  get isPlain(): boolean {
    return !isTls(this.wire.socket);
  }

  /** The name that the TLS handshake asked for; undefined: none, or no TLS. */
  get servername(): string | undefined {
    return servernameOf(this.wire.socket);
  }

  /** Headers that are not forwarded: those of an invalid trace context. */
  get untraced(): ReadonlySet<string> | undefined {
    return this.traceparent === "" ? traceHeaders : undefined;
  }

  /** Call it when no more of the body is expected: the body has ended, or cannot be read. */
  bodyOver(): void {
    this.#bodyOver = true;
  }

  /** True: the client is still sending its body. */
  get restComes(): boolean {
    const isAwaited = this.expectsContinue && !this.continued;
    return !this.#bodyOver && !this.request.complete && !isAwaited;
  }

  /** Sends 100 Continue, so that a waiting client sends its body. */
  sendContinue(): void {
    if (this.continued || this.response.headersSent || this.over) return;
    this.continued = true;
    this.response.writeContinue();
  }

  sendContinueIfAsked(): void {
    if (this.expectsContinue) this.sendContinue();
  }

  /**
   * Begins the answer. An answer that begins before the request is complete also ends the connection. A header of every
   * answer belongs here, in `accept` and in raw-answer.ts.
   */
  begin(status: number, reason: string | undefined, headers: RawHeaders): void {
    const all = [...headers, ...this.finalHeaders, "x-request-id", this.requestId];
    if (this.#refused || (!this.#bodyOver && !this.request.complete)) all.push("connection", "close");
    if (reason === undefined) this.response.writeHead(status, all);
    else this.response.writeHead(status, reason, all);
  }

  /** Ends the answer. The rest of an incomplete request is still read for a while (ClientConnections). */
  end(last?: Buffer): void {
    if (this.over) return;
    if (last === undefined) this.response.end();
    else if (this.wire.isHttp2) this.response.end(last);
    // Given as text, a short body is written together with the head; latin1 keeps every byte.
    else if (last.length <= onePieceBytes) this.response.end(last.toString("latin1"), "latin1");
    else this.response.end(last);
  }

  /** Answers with an error body, or cuts the answer if it has begun. */
  fail(error: ClocheError, status = dataPlaneStatus(error)): void {
    if (this.over || this.failure !== undefined) return;
    this.failure = error;
    if (this.gone) return;
    if (this.response.headersSent) return this.cut();
    const body = Buffer.from(JSON.stringify(error.toBody()));
    const headers = ["content-type", "application/json", "content-length", String(body.length)];
    if (status === 401) headers.push("www-authenticate", "Bearer");
    if (error.allow !== undefined) headers.push("allow", error.allow.join(", "));
    if (error.retryAfterSeconds !== undefined) headers.push("retry-after", String(error.retryAfterSeconds));
    if (this.upgradeFirst !== undefined) headers.push("connection", "close");
    this.begin(status, undefined, headers);
    this.end(body);
  }

  /** Refuses a bad request, and ends its connection. */
  refuse(error: ClocheError, status?: number): void {
    const { onGone } = this;
    this.onGone = undefined;
    onGone?.();
    this.#refused = true;
    this.fail(error, status);
  }

  /** Cuts the answer, so that the client sees that it is not complete. `code`: the error code of HTTP/2. */
  cut(code?: number): void {
    this.over = true;
    this.wire.cut(code);
  }

  /** Grants an Upgrade; returns the client's stream. The exchange is over then. */
  accept(reason: string, headers: RawHeaders, protocol: string): Duplex {
    this.over = true;
    this.upgraded = true;
    return this.wire.accept(reason, [...headers, "x-request-id", this.requestId], protocol);
  }

  /** Ends the exchange at once, and what its connection was upgraded to; nothing once it has ended. */
  drop(): void {
    if (this.#isEnded) return;
    this.clientGone();
    this.wire.drop();
  }

  /** Calls back when nothing more is carried: the exchange is over, and so is what its connection was upgraded to. */
  whenEnded(then: () => void): void {
    if (this.#isEnded) then();
    else this.#whenEnded.push(then);
  }

  /** Nothing more is carried. */
  ended(): void {
    this.#isEnded = true;
    for (const then of this.#whenEnded.splice(0)) then();
  }

  /** The client went away. */
  clientGone(): void {
    if (this.over || this.gone) return;
    this.gone = true;
    const { onGone } = this;
    this.onGone = undefined;
    onGone?.();
  }
}
