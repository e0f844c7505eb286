import { ClocheError } from "@cloche/protocol";
import type { AgentConnection, AnswerFailure, AnswerHandlers } from "./agent-connection.ts";
import type { AnswerHead } from "./answer-parser.ts";
import type { AgentPool } from "./agent-pool.ts";
import { isKeptUntilWhole } from "./connection-places.ts";
import type { EdgeLimits } from "./edge-limits.ts";
import { type Exchange, joinSockets } from "./exchange.ts";
import { answerHeaders, type RawHeaders } from "./headers.ts";

export interface Forwarding {
  pool: AgentPool;
  /** The client's headers as they shall arrive, without framing. */
  headers: RawHeaders;
  /** In place of the client's request target. */
  target?: string;
  /** Changes the headers of an answer on their way to the client. */
  answer?: (headers: RawHeaders) => RawHeaders;
  /** The server speaks HTTP/2 alone, which came out now: sends the request so. `first`: what was read of its body. */
  overHttp2?: (first: readonly Buffer[] | undefined) => void;
  /** The sandbox moved before anything was sent: it is asked anew. `body`: the whole of it; undefined: it streams. Default: an error. */
  again?: (body: Buffer | undefined) => void;
  /** What the client is told when there is no answer. */
  explain: (failure: AnswerFailure) => ClocheError;
  /** The client went away after the whole request had been sent. */
  onAbort?: () => void;
}

/** Methods whose repetition does no harm (RFC 9110, 9.2.2). */
const idempotent = new Set(["GET", "HEAD", "PUT", "DELETE", "OPTIONS"]);
/** A client that expects 100 Continue is not left waiting by an agent that does not know of it. */
const continueWaitMs = 1_000;
/**
 * A body that streams comes in TLS records of 16 KiB; each write of one costs its way through two namespaces and a packet
 * that wakes the sandbox. So many bytes go on together, or what has come by the end of the event loop's turn.
 */
const gatheredBytes = 48 * 1024;
/**
 * An answer comes from the agent in records of 16 KiB too, four at a time, and goes on together. Smaller pieces are no part of a large file:
 * events, a terminal's output. They wait for nothing.
 */
const recordBytes = 16 * 1024;
const answerGatheredBytes = 8 * recordBytes;

/**
 * Carries one request to the agent and its answer back, both streaming, with the slower side setting the pace. Bodies of known small size go
 * in one piece once they are whole. Where nothing was answered, a kept-alive connection that had died is replaced once, if the request cannot have
 * been begun (no connection) or may be repeated (idempotent, body at hand). `whole`: a body that was read already.
 */
export function forward(
  exchange: Exchange,
  forwarding: Forwarding,
  limits: EdgeLimits,
  whole?: Buffer,
): void {
  if (whole !== undefined) return send(exchange, forwarding, whole);
  if (!exchange.hasBody) return send(exchange, forwarding, Buffer.alloc(0));
  if (!isKeptUntilWhole(exchange, limits)) return send(exchange, forwarding, undefined);
  const chunks: Buffer[] = [];
  exchange.request.on("data", (chunk: Buffer) => chunks.push(chunk));
  exchange.request.once("end", () => {
    exchange.bodyOver();
    if (!exchange.over && !exchange.gone && exchange.failure === undefined) {
      send(exchange, forwarding, chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks));
    }
  });
}

/** `body`: the whole of it; undefined: it streams. */
function send(exchange: Exchange, forwarding: Forwarding, body: Buffer | undefined, fresh = false): void {
  forwarding.pool.acquire(fresh, (connection, failure) => {
    if (exchange.gone || exchange.over) {
      connection?.abandon();
      return;
    }
    if (connection === undefined) {
      if (failure?.kind === "closed" && forwarding.again !== undefined) return forwarding.again(body);
      exchange.fail(forwarding.explain(failure as AnswerFailure));
      return;
    }
    const retry = (): void => send(exchange, forwarding, body, true);
    new Carrier(exchange, forwarding, connection, body, fresh ? undefined : retry).start();
  });
}

class Carrier implements AnswerHandlers {
  readonly #exchange: Exchange;
  readonly #forwarding: Forwarding;
  readonly #connection: AgentConnection;
  readonly #body: Buffer | undefined;
  readonly #retry: (() => void) | undefined;
  /** What went on of a body that streams, until it is certain that nothing needs it again. */
  #first: Buffer[] | undefined;
  #firstBytes = 0;
  /** Of the answer's body, not sent on yet; not past the end of the event loop's turn. */
  #gathered: Buffer[] = [];
  #gatheredBytes = 0;
  #turnOver: NodeJS.Immediate | undefined;
  /** The client does not take the answer as fast as it comes. */
  #isHeld = false;
  #sent = false;
  #left: number | undefined;
  #continueTimer: NodeJS.Timeout | undefined;
  #ended = false;

  constructor(
    exchange: Exchange,
    forwarding: Forwarding,
    connection: AgentConnection,
    body: Buffer | undefined,
    retry: (() => void) | undefined,
  ) {
    this.#exchange = exchange;
    this.#forwarding = forwarding;
    this.#connection = connection;
    this.#body = body;
    this.#retry = retry;
    if (forwarding.overHttp2 !== undefined) this.#first = body === undefined ? [] : [body];
  }

  start(): void {
    const { request } = this.#exchange;
    this.#exchange.onGone = this.#clientGone;
    this.#connection.start(this, request.method === "HEAD", this.#exchange.hasBody);
    const head = this.#head();
    const body = this.#body;
    if (body === undefined) {
      this.#connection.write(head);
      this.#stream();
      return;
    }
    this.#connection.write(body.length === 0 ? head : Buffer.concat([Buffer.from(head, "latin1"), body]));
    this.#sent = true;
    this.#connection.requestSent();
  }

  #head(): string {
    const { request, requestId, upgradeFirst } = this.#exchange;
    const { headers, target = request.url } = this.#forwarding;
    let text = `${request.method} ${target} HTTP/1.1\r\n`;
    for (let index = 0; index + 1 < headers.length; index += 2)
      text += `${headers[index]}: ${headers[index + 1]}\r\n`;
    text += `x-request-id: ${requestId}\r\n`;
    const length = request.headers["content-length"];
    if (upgradeFirst !== undefined) text += `Connection: Upgrade\r\nUpgrade: ${request.headers.upgrade}\r\n`;
    else if (request.headers["transfer-encoding"] !== undefined) text += "Transfer-Encoding: chunked\r\n";
    else if (length !== undefined) text += `Content-Length: ${length}\r\n`;
    return `${text}\r\n`;
  }

  #stream(): void {
    const exchange = this.#exchange;
    if (!exchange.expectsContinue) return this.#pump();
    this.#continueTimer = setTimeout(() => this.onContinue(), continueWaitMs);
  }

  #pump(): void {
    const { request } = this.#exchange;
    const chunked = request.headers["transfer-encoding"] !== undefined;
    let gathered: (string | Buffer)[] = [];
    let bytes = 0;
    let turnOver: NodeJS.Immediate | undefined;
    const flush = (): void => {
      clearImmediate(turnOver);
      turnOver = undefined;
      const pieces = gathered;
      gathered = [];
      bytes = 0;
      if (!this.#ended && pieces.length > 0 && !this.#connection.writeAll(pieces)) request.pause();
    };
    request.on("data", (chunk: Buffer) => {
      if (this.#ended) return;
      this.#keep(chunk);
      if (chunked) gathered.push(`${chunk.length.toString(16)}\r\n`, chunk, "\r\n");
      else gathered.push(chunk);
      bytes += chunk.length;
      if (bytes >= gatheredBytes) flush();
      else turnOver ??= setImmediate(flush);
    });
    request.once("end", () => {
      this.#exchange.bodyOver();
      if (chunked) gathered.push("0\r\n\r\n");
      flush();
      if (this.#ended) return;
      this.#sent = true;
      this.#connection.requestSent();
    });
  }

  #keep(chunk: Buffer): void {
    this.#firstBytes += chunk.length;
    if (this.#firstBytes > gatheredBytes * 2) this.#first = undefined;
    else this.#first?.push(chunk);
  }

  onDrain(): void {
    this.#exchange.request.resume();
  }

  onContinue(): void {
    if (this.#continueTimer === undefined) return;
    clearTimeout(this.#continueTimer);
    this.#continueTimer = undefined;
    this.#exchange.sendContinue();
    this.#pump();
  }

  onHead(head: AnswerHead): void {
    const { response } = this.#exchange;
    clearTimeout(this.#continueTimer);
    this.#continueTimer = undefined;
    this.#left = head.length;
    this.#first = undefined;
    try {
      this.#exchange.begin(head.status, head.reason, this.#answerHeaders(head));
    } catch (error) {
      // A header that node refuses to send on.
      this.#stop();
      this.#connection.abandon();
      this.#exchange.fail(
        this.#forwarding.explain({ kind: "format", reused: false, answered: true, cause: error }),
      );
      return;
    }
    // The head goes out even when no body comes for a while (events); in the same packet when it does come.
    if (head.length === undefined) process.nextTick(() => this.#ended || response.flushHeaders());
  }

  #answerHeaders(head: AnswerHead): RawHeaders {
    const headers = answerHeaders(head.headers);
    return this.#forwarding.answer === undefined ? headers : this.#forwarding.answer(headers);
  }

  onBody(chunk: Buffer): void {
    if (this.#left !== undefined) {
      this.#left -= chunk.length;
      if (this.#left === 0) {
        this.#ended = true;
        this.#exchange.end(this.#takeGathered(chunk));
        return;
      }
    }
    this.#gathered.push(chunk);
    this.#gatheredBytes += chunk.length;
    if (chunk.length < recordBytes || this.#gatheredBytes >= answerGatheredBytes) this.#sendGathered();
    else this.#turnOver ??= setImmediate(this.#sendGathered);
  }

  /** All that waits, with `chunk` behind it. */
  #takeGathered(chunk?: Buffer): Buffer | undefined {
    clearImmediate(this.#turnOver);
    this.#turnOver = undefined;
    if (this.#gatheredBytes === 0) return chunk;
    const pieces = this.#gathered;
    if (chunk) pieces.push(chunk);
    this.#gathered = [];
    this.#gatheredBytes = 0;
    return pieces.length === 1 ? pieces[0] : Buffer.concat(pieces);
  }

  readonly #sendGathered = (): void => {
    const { response } = this.#exchange;
    const bytes = this.#takeGathered();
    if (this.#ended || bytes === undefined || response.write(bytes) || this.#isHeld) return;
    this.#isHeld = true;
    this.#connection.pause();
    response.once("drain", () => {
      this.#isHeld = false;
      this.#connection.resume();
    });
  };

  onDone(): void {
    this.#exchange.onGone = undefined;
    if (this.#ended) return;
    this.#ended = true;
    this.#exchange.end(this.#takeGathered());
  }

  onUpgrade(head: AnswerHead, far: NonNullable<AgentConnection["socket"]>, first: Buffer): void {
    const { upgradeFirst, request } = this.#exchange;
    this.#stop();
    if (upgradeFirst === undefined) {
      far.destroy();
      const cause = new Error("101 without Upgrade");
      this.#exchange.fail(this.#forwarding.explain({ kind: "format", reused: false, answered: true, cause }));
      return;
    }
    const protocol = request.headers.upgrade ?? "";
    const client = this.#exchange.accept(head.reason, this.#answerHeaders(head), protocol);
    if (first.length > 0) client.write(first);
    if (upgradeFirst.length > 0) far.write(upgradeFirst);
    joinSockets(client, far);
    this.#exchange.onOver?.();
  }

  onFailure(failure: AnswerFailure): void {
    this.#sendGathered();
    this.#stop();
    if (failure.kind === "http2" && this.#forwarding.overHttp2 !== undefined)
      return this.#forwarding.overHttp2(this.#first);
    const nothingBegun = failure.kind === "connect" && this.#body !== undefined;
    const stale = failure.kind === "lost" && failure.reused && !failure.answered && this.#body !== undefined;
    const repeatable = idempotent.has(this.#exchange.request.method ?? "");
    if (this.#retry !== undefined && (nothingBegun || (stale && repeatable))) return this.#retry();
    this.#exchange.fail(this.#forwarding.explain(failure));
  }

  /** From here on neither side is carried any further. */
  #stop(): void {
    this.#ended = true;
    clearTimeout(this.#continueTimer);
    this.#continueTimer = undefined;
    this.#exchange.onGone = undefined;
  }

  readonly #clientGone = (): void => {
    const whole = this.#sent;
    this.#stop();
    this.#connection.abandon();
    if (whole) this.#forwarding.onAbort?.();
  };
}
