/**
 * One request of a client and its answer, from its head until both are over. Knows how to answer, how to fail and when the client went away;
 * knows nothing of sandboxes.
 *
 *   open ──answer begun──▶ answering ──▶ finished
 *     └──────────────┬──────────┘
 *                    ├── client went away: `onGone` is told (what stops an exec)
 *                    └── we cut it (agent or edge failed): nobody is told
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
  /** It is for a server of the sandbox's own, not for the data plane. */
  forPort = false;
  /** It asks for the edge's own health, which nobody wants in logs or metrics. */
  isHealthCheck = false;
  /** The caller's W3C trace context; empty: none, or none that is valid. */
  readonly traceparent: string;
  /** CORS headers of every answer but 101 (forward.ts): an upgraded connection has none. */
  extraHeaders: RawHeaders = [];
  /** Told once when the client itself went away before the answer was over. */
  onGone: (() => void) | undefined;
  /** Told when the socket left for an upgraded protocol, which ends the exchange. */
  onOver: (() => void) | undefined;
  /** How often its sandbox moved before anything was sent. */
  moves = 0;
  continued = false;
  gone = false;
  over = false;
  /** It left for an upgraded protocol. */
  upgraded = false;
  /** Why it failed, for the log. */
  failure: ClocheError | undefined;
  #bodyOver: boolean;
  #refused = false;

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

  /** It came without TLS. */
  get isPlain(): boolean {
    return !isTls(this.wire.socket);
  }

  /** The name that the TLS handshake asked for; undefined: none, or no TLS. */
  get servername(): string | undefined {
    return servernameOf(this.wire.socket);
  }

  /** Headers that go no further: a trace context that is not valid. */
  get untraced(): ReadonlySet<string> | undefined {
    return this.traceparent === "" ? traceHeaders : undefined;
  }

  /** No more of its body is waited for: it came to its end, or cannot be read. */
  bodyOver(): void {
    this.#bodyOver = true;
  }

  /** The client is in the middle of sending its body. */
  get restComes(): boolean {
    const isAwaited = this.expectsContinue && !this.continued;
    return !this.#bodyOver && !this.request.complete && !isAwaited;
  }

  /** Asks a client that waits for it to send its body. */
  sendContinue(): void {
    if (this.continued || this.response.headersSent || this.over) return;
    this.continued = true;
    this.response.writeContinue();
  }

  sendContinueIfAsked(): void {
    if (this.expectsContinue) this.sendContinue();
  }

  /** Begins the answer. An answer that comes before the request is over ends the connection after it. */
  begin(status: number, reason: string | undefined, headers: RawHeaders): void {
    const all = [...headers, ...this.extraHeaders, "x-request-id", this.requestId];
    if (this.#refused || (!this.#bodyOver && !this.request.complete)) all.push("connection", "close");
    if (reason === undefined) this.response.writeHead(status, all);
    else this.response.writeHead(status, reason, all);
  }

  /** Ends the answer. What is left of an unfinished request is read for a while (ClientConnections). */
  end(last?: Buffer): void {
    if (this.over) return;
    if (last === undefined) this.response.end();
    else if (this.wire.isHttp2) this.response.end(last);
    // A short body as text lets node write head and body at once; latin1 keeps every byte.
    else if (last.length <= onePieceBytes) this.response.end(last.toString("latin1"), "latin1");
    else this.response.end(last);
  }

  /** Answers with the one error shape, or cuts the answer where it has begun. */
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

  /** The client's request is at fault in a way that ends its connection. */
  refuse(error: ClocheError, status?: number): void {
    const { onGone } = this;
    this.onGone = undefined;
    onGone?.();
    this.#refused = true;
    this.fail(error, status);
  }

  /** Ends it in the middle of an answer, so that the client sees that it is not whole; `code` says why to one of HTTP/2. */
  cut(code?: number): void {
    this.over = true;
    this.wire.cut(code);
  }

  /** Grants an Upgrade: gives the client's bytes of both directions from here on. The exchange is over then. */
  accept(reason: string, headers: RawHeaders, protocol: string): Duplex {
    this.over = true;
    this.upgraded = true;
    return this.wire.accept(reason, [...headers, "x-request-id", this.requestId], protocol);
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

/** Where a socket goes after 101. */
export function joinSockets(client: Duplex, far: Duplex): void {
  const end = (): void => {
    client.destroy();
    far.destroy();
  };
  for (const socket of [client, far]) {
    socket.on("error", end);
    socket.on("close", end);
  }
  client.pipe(far);
  far.pipe(client);
}
