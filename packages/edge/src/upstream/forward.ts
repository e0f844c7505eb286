import type { IncomingMessage } from "node:http";
import { asBuffer } from "@cloche/base";
import { ClocheError, GatheredBytes } from "@cloche/protocol";
import type { AgentConnection, AnswerFailure, AnswerHandlers, Owner } from "./agent-connection.ts";
import type { AnswerHead } from "./answer-parser.ts";
import type { AgentPool } from "./agent-pool.ts";
import { isKeptUntilWhole } from "../exchange/connection-places.ts";
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "../exchange/exchange.ts";
import { Gathered } from "./gathered.ts";
import { answerHeaders, type RawHeaders } from "../exchange/headers.ts";
import { joinSockets } from "./join-sockets.ts";

export interface Forwarding {
  pool: AgentPool;
  /**
   * For a server that is not ours, the client's connection. Such a server may see another end of a request than the edge
   * does, so what it reads and answers next must not be another caller's.
   */
  owner?: Owner;
  /** The client's headers as the far end gets them, without framing headers. */
  headers: RawHeaders;
  /** Replaces the client's request target. */
  target?: string;
  /** Changes the answer's headers before the client gets them. */
  answer?: (headers: RawHeaders) => RawHeaders;
  /** Sends the request by HTTP/2, when the server speaks only that. `first`: the body so far; undefined: too large. */
  overHttp2?: (first: readonly Buffer[] | undefined) => void;
  /**
   * Sends the request again, when the sandbox moved before anything was sent. `body`: the whole body; undefined: it
   * streams. Default: an error.
   */
  again?: (body: Buffer | undefined) => void;
  /** The error for the client when there is no answer. */
  explain: (failure: AnswerFailure) => ClocheError;
  /** Called when the client went away after the whole request had been sent. */
  onAbort?: () => void;
}

/** Methods that can be repeated without harm (RFC 9110, 9.2.2). */
const idempotent = new Set(["GET", "HEAD", "PUT", "DELETE", "OPTIONS"]);
/** After this time a client that expects 100 Continue gets it, even from an agent that does not send it. */
const continueWaitMs = 1_000;
/**
 * A streamed body arrives in TLS records of 16 KiB, and each write costs a way through two namespaces and a packet that
 * wakes the sandbox. So this many bytes are sent together, or all that arrived in one turn of the event loop.
 */
export const gatheredBytes = 48 * 1024;
/** An answer also arrives in records of 16 KiB, four at a time; this many of its bytes are sent together. */
export const answerGatheredBytes = 128 * 1024;

/**
 * Carries one request to the agent and its answer back. Both stream at the pace of the slower side. Small bodies of
 * known size are sent in one piece once they are complete. Without an answer, a request whose whole body is at hand is
 * sent once more on a new connection: if it cannot have begun (no connection), or if the kept-alive connection had died
 * and the method is idempotent. `whole`: a body that was read already.
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
  const body = new GatheredBytes();
  exchange.request.on("data", (chunk: Buffer) => body.push(chunk));
  exchange.request.once("end", () => {
    exchange.bodyOver();
    if (!exchange.over && !exchange.gone && exchange.failure === undefined) {
      send(exchange, forwarding, asBuffer(body.take()));
    }
  });
}

/** `body`: the whole body; undefined: it streams. */
function send(exchange: Exchange, forwarding: Forwarding, body: Buffer | undefined, fresh = false): void {
  forwarding.pool.acquire(
    fresh,
    (connection, failure) => {
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
    },
    forwarding.owner,
  );
}

/** Whether every server sees the end of the body: simple ones read no chunks, and no body of a GET or DELETE. */
const isPlainlyFramed = ({ method = "", headers }: IncomingMessage): boolean =>
  headers["content-length"] !== undefined && ["POST", "PUT", "PATCH"].includes(method);

class Carrier implements AnswerHandlers {
  readonly #exchange: Exchange;
  readonly #forwarding: Forwarding;
  readonly #connection: AgentConnection;
  readonly #body: Buffer | undefined;
  readonly #retry: (() => void) | undefined;
  /** The body sent so far, kept while it may have to be sent again over HTTP/2. */
  #first: Buffer[] | undefined;
  #firstBytes = 0;
  readonly #answered = new Gathered(answerGatheredBytes, (bytes) => this.#sendAnswer(bytes));
  /** The client reads the answer more slowly than it arrives. */
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
    const { hasBody } = this.#exchange;
    const isLast = this.#forwarding.owner !== undefined && hasBody && !isPlainlyFramed(request);
    this.#connection.start(this, request.method === "HEAD", hasBody, isLast);
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
    const gathered = new Gathered(gatheredBytes, (bytes) => {
      if (this.#ended) return;
      const pieces = chunked ? [`${bytes.length.toString(16)}\r\n`, bytes, "\r\n"] : [bytes];
      if (!this.#connection.writeAll(pieces)) request.pause();
    });
    request.on("data", (chunk: Buffer) => {
      if (this.#ended) return;
      this.#keep(chunk);
      gathered.push(chunk);
    });
    request.once("end", () => {
      this.#exchange.bodyOver();
      gathered.flush();
      if (this.#ended) return;
      if (chunked) this.#connection.write("0\r\n\r\n");
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
      // Node refuses to send one of the headers.
      this.#stop();
      this.#connection.abandon();
      this.#exchange.fail(
        this.#forwarding.explain({ kind: "format", reused: false, answered: true, cause: error }),
      );
      return;
    }
    // Send the head even when no body follows for a while (events), but in one packet with a body that follows at once.
    if (head.length !== undefined) return;
    process.nextTick(() => {
      if (this.#ended) return;
      if (this.#answered.isEmpty) response.flushHeaders();
      else this.#answered.flush();
    });
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
        const before = this.#answered.take();
        this.#exchange.end(before === undefined ? chunk : Buffer.concat([before, chunk]));
        return;
      }
    }
    this.#answered.push(chunk);
  }

  #sendAnswer(bytes: Buffer): void {
    const { response } = this.#exchange;
    if (this.#ended || response.write(bytes) || this.#isHeld) return;
    this.#isHeld = true;
    this.#connection.pause();
    response.once("drain", () => {
      this.#isHeld = false;
      this.#connection.resume();
    });
  }

  onDone(): void {
    this.#exchange.onGone = undefined;
    if (this.#ended) return;
    this.#ended = true;
    this.#exchange.end(this.#answered.take());
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
    joinSockets(client, far, this.#forwarding.pool.work);
    this.#exchange.joined = [client, far];
    this.#exchange.onOver?.();
  }

  onFailure(failure: AnswerFailure): void {
    this.#answered.flush();
    this.#stop();
    if (failure.kind === "http2" && this.#forwarding.overHttp2 !== undefined)
      return this.#forwarding.overHttp2(this.#first);
    const nothingBegun = failure.kind === "connect" && this.#body !== undefined;
    const stale = failure.kind === "lost" && failure.reused && !failure.answered && this.#body !== undefined;
    const repeatable = idempotent.has(this.#exchange.request.method ?? "");
    if (this.#retry !== undefined && (nothingBegun || (stale && repeatable))) return this.#retry();
    this.#exchange.fail(this.#forwarding.explain(failure));
  }

  /** Stops carrying bytes in both directions. */
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
