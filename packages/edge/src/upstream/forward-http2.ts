/**
 * Carries one request to an HTTP/2 server on a port, and its answer back. Both stream at the pace of the slower side.
 * Trailers, and answers that are only a head, arrive as they were sent, because gRPC sends its status there.
 */
import { type ClientHttp2Stream, type ClientSessionRequestOptions, constants } from "node:http2";
import type { ServerResponse } from "node:http";
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from "node:http2";
import type { AnswerFailure } from "./agent-connection.ts";
import type { Exchange } from "../exchange/exchange.ts";
import { answerGatheredBytes, type Forwarding, gatheredBytes } from "./forward.ts";
import { Gathered } from "./gathered.ts";
import { answerHeaders, type RawHeaders } from "../exchange/headers.ts";
import { Http2RefusedError, type Http2Port } from "./http2-port.ts";
import { Http2Response } from "../http2/http2-response.ts";

/** `first`: pieces of the body read already. `onRefused`: the server does not speak HTTP/2; nothing was sent. */
export function forwardHttp2(
  exchange: Exchange,
  forwarding: Forwarding,
  port: Http2Port,
  { first = [], onRefused }: { first?: readonly Buffer[]; onRefused?: () => void },
): void {
  const { request } = exchange;
  // Pause only a request that is being read: an explicit pause would stop a later reader from starting.
  if (request.readableFlowing === true) request.pause();
  port.acquire().then(
    (session) => {
      if (exchange.gone || exchange.over) return;
      carry(exchange, forwarding, (...asked) => port.request(session, ...asked), first);
    },
    (cause: unknown) => {
      if (exchange.gone || exchange.over) return;
      if (cause instanceof Http2RefusedError && onRefused !== undefined) return onRefused();
      const kind = cause instanceof Http2RefusedError ? "format" : "connect";
      exchange.fail(forwarding.explain({ kind, reused: false, answered: false, cause }));
    },
  );
}

function carry(
  exchange: Exchange,
  forwarding: Forwarding,
  open: (headers: readonly string[], options: ClientSessionRequestOptions) => ClientHttp2Stream,
  first: readonly Buffer[],
): void {
  const { request } = exchange;
  let stream: ClientHttp2Stream;
  try {
    // The stream stays writable until the end of the body; without a body, the head ends it.
    stream = open(requestHeaders(exchange, forwarding), { endStream: !exchange.hasBody });
  } catch (cause) {
    const failure: AnswerFailure = { kind: "lost", reused: true, answered: false, cause };
    exchange.fail(forwarding.explain(failure));
    return;
  }
  exchange.onGone = () => stream.close(constants.NGHTTP2_CANCEL);
  receive(exchange, forwarding, stream);
  if (!exchange.hasBody) return;
  const gathered = new Gathered(gatheredBytes, (bytes) => {
    if (stream.writable && !stream.write(bytes)) request.pause();
  });
  stream.on("drain", () => request.resume());
  request.on("data", (chunk: Buffer) => gathered.push(chunk));
  request.once("end", () => {
    exchange.bodyOver();
    gathered.flush();
    stream.end();
  });
  for (const chunk of first) gathered.push(chunk);
  gathered.flush();
  exchange.sendContinueIfAsked();
  if (request.readableEnded) stream.end();
  else if (!stream.writableNeedDrain) request.resume();
}

function requestHeaders(exchange: Exchange, { headers, target }: Forwarding): string[] {
  const { request, requestId } = exchange;
  const { te, host = "", "content-length": length } = request.headers;
  const all = [":method", request.method ?? "", ":scheme", "http", ":authority", host];
  all.push(":path", target ?? request.url ?? "");
  for (let index = 0; index + 1 < headers.length; index += 2) {
    const name = (headers[index] as string).toLowerCase();
    if (name !== "host") all.push(name, headers[index + 1] as string);
  }
  if (typeof te === "string" && /(?:^|,)\s*trailers\s*(?:[,;]|$)/i.test(te)) all.push("te", "trailers");
  if (length !== undefined && exchange.hasBody) all.push("content-length", length);
  all.push("x-request-id", requestId);
  return all;
}

function receive(exchange: Exchange, forwarding: Forwarding, stream: ClientHttp2Stream): void {
  const { response } = exchange;
  let ended = false;
  const over = (): void => {
    ended = true;
    exchange.onGone = undefined;
  };
  stream.once("response", (headers: IncomingHttpHeaders, flags: number, raw?: unknown) => {
    const status = Number(headers[":status"]);
    const all = plain(raw as RawHeaders);
    const kept = forwarding.answer === undefined ? all : forwarding.answer(all);
    const isHeadAlone = (flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0;
    try {
      begin(exchange, status, kept, isHeadAlone);
    } catch (cause) {
      over();
      stream.close(constants.NGHTTP2_CANCEL);
      exchange.fail(forwarding.explain({ kind: "format", reused: false, answered: true, cause }));
    }
  });
  stream.once("trailers", (_headers: unknown, _flags: number, raw?: unknown) =>
    addTrailers(response, plain(raw as RawHeaders)),
  );
  const answered = new Gathered(answerGatheredBytes, (bytes) => {
    if (ended || response.write(bytes) || stream.isPaused()) return;
    stream.pause();
    response.once("drain", () => stream.resume());
  });
  stream.on("data", (chunk: Buffer) => answered.push(chunk));
  stream.once("end", () => {
    // A stream that was reset ends too.
    if (ended || stream.rstCode !== constants.NGHTTP2_NO_ERROR || !response.headersSent) return;
    answered.flush();
    over();
    exchange.end();
    // The server answered without reading the whole body.
    if (!stream.writableEnded) stream.close(constants.NGHTTP2_NO_ERROR);
  });
  stream.on("error", () => undefined);
  stream.once("close", () => {
    if (ended) return;
    answered.flush();
    over();
    if (response.headersSent) return exchange.cut(stream.rstCode);
    const cause = new Error(`the stream was reset with ${stream.rstCode}`);
    exchange.fail(forwarding.explain({ kind: "lost", reused: false, answered: false, cause }));
  });
}

function begin(exchange: Exchange, status: number, headers: RawHeaders, isHeadAlone: boolean): void {
  const { response } = exchange;
  if (!(response instanceof Http2Response)) return exchange.begin(status, undefined, headers);
  if (isHeadAlone) response.endWithHead();
  else response.awaitTrailers();
  exchange.begin(status, undefined, headers);
}

/** The headers without pseudo headers and hop-by-hop headers. */
function plain(raw: RawHeaders = []): RawHeaders {
  const kept: RawHeaders = [];
  for (let index = 0; index + 1 < raw.length; index += 2) {
    if (!(raw[index] as string).startsWith(":")) kept.push(raw[index] as string, raw[index + 1] as string);
  }
  return answerHeaders(kept);
}

function addTrailers(response: ServerResponse, raw: RawHeaders): void {
  const trailers: OutgoingHttpHeaders = {};
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const [name, value] = [raw[index] as string, raw[index + 1] as string];
    const before = trailers[name];
    trailers[name] = before === undefined ? value : [before, value].flat().map(String);
  }
  response.addTrailers(trailers as Record<string, string>);
}
