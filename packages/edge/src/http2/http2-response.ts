/** An HTTP/2 answer in the form of node's HTTP/1.1 message, and how an HTTP/2 stream is cut or upgraded. */
import { type OutgoingHttpHeader, type OutgoingHttpHeaders, ServerResponse } from "node:http";
import { constants, type ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { ClientWire } from "../exchange/client-wire.ts";
import type { RawHeaders } from "../exchange/headers.ts";
import type { Http2Request } from "./http2-request.ts";

/** Headers of an HTTP/1.1 connection, which are an error in HTTP/2 (RFC 9113, 8.2.2). */
const ofConnections = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "transfer-encoding",
  "upgrade",
]);

export class Http2Response extends ServerResponse {
  readonly #stream: ServerHttp2Stream;
  #isBodyless: boolean;
  #begun = false;
  #ended = false;
  #isClosed = false;
  #trailers: OutgoingHttpHeaders = {};
  #awaitsTrailers = false;

  constructor(request: Http2Request) {
    super(request);
    const { stream } = request;
    this.#stream = stream;
    this.#isBodyless = request.method === "HEAD";
    // Properties in the types, accessors in node.
    Object.defineProperty(this, "headersSent", { get: () => this.#begun });
    Object.defineProperty(this, "closed", { get: () => this.#isClosed });
    Object.defineProperty(this, "writableLength", { get: () => stream.writableLength });
    stream.on("drain", () => this.emit("drain"));
    stream.once("finish", this.#finished);
    stream.once("close", () => {
      this.destroyed = true;
      this.#isClosed = true;
      this.emit("close");
    });
  }

  /** Ignores the finish of a reset stream, and of HEAD, whose stream finishes before it is answered. */
  readonly #finished = (): void => {
    if (this.#begun && !this.#stream.aborted) this.emit("finish");
  };

  /** Announces that trailers may follow the body; call it before the answer begins. */
  awaitTrailers(): void {
    this.#awaitsTrailers = true;
    // Without trailers this ends the stream.
    this.#stream.once("wantTrailers", () => this.#stream.sendTrailers(this.#trailers));
  }

  /** Announces that the answer is only a head, as gRPC's with a status only; call it before the answer begins. */
  endWithHead(): void {
    this.#isBodyless = true;
  }

  override addTrailers(trailers: OutgoingHttpHeaders): void {
    this.#trailers = trailers;
  }

  override writeHead(
    status: number,
    reason?: string | OutgoingHttpHeaders | OutgoingHttpHeader[],
    headers?: OutgoingHttpHeaders | OutgoingHttpHeader[],
  ): this {
    this.statusCode = status;
    const given = typeof reason === "string" || reason === undefined ? headers : reason;
    const all: string[] = [":status", String(status)];
    let length: string | undefined;
    const add = (name: string, value: unknown): void => {
      const lower = name.toLowerCase();
      if (ofConnections.has(lower)) return;
      if (lower === "content-length") length = String(value);
      all.push(lower, String(value));
    };
    // As in node, headers given here take the place of those set before.
    const isGiven = new Set(namesOf(given).map((name) => name.toLowerCase()));
    for (const name of this.getHeaderNames()) if (!isGiven.has(name)) add(name, this.getHeader(name));
    if (Array.isArray(given))
      for (let index = 0; index + 1 < given.length; index += 2) add(String(given[index]), given[index + 1]);
    else for (const [name, value] of Object.entries(given ?? {})) add(name, value);
    const endStream = this.#isBodyless || status === 204 || status === 304 || length === "0";
    this.#respond(all, endStream);
    return this;
  }

  #respond(headers: string[], endStream: boolean): void {
    this.#begun = true;
    this.#ended = endStream;
    if (this.#stream.writableFinished) process.nextTick(this.#finished);
    if (this.#stream.destroyed) return;
    const options = { endStream, waitForTrailers: this.#awaitsTrailers && !endStream };
    try {
      this.#stream.respond(headers, options);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ERR_HTTP2_HEADER_SINGLE_VALUE") throw error;
      this.#stream.respond(firstOfEach(headers), options);
    }
  }

  override write(chunk: string | Uint8Array, encoding?: unknown): boolean {
    if (this.#ended || this.#stream.destroyed) return true;
    if (!this.#begun) this.writeHead(this.statusCode);
    return this.#stream.write(toBytes(chunk, encoding));
  }

  override end(chunk?: unknown, encoding?: unknown): this {
    if (this.#stream.destroyed) return this;
    if (!this.#begun) this.writeHead(this.statusCode);
    if (this.#ended) return this;
    this.#ended = true;
    if (chunk === undefined || typeof chunk === "function") this.#stream.end();
    else this.#stream.end(toBytes(chunk as string | Uint8Array, encoding));
    return this;
  }

  /** Cuts the answer, so that the client does not take it for complete. */
  override destroy(error?: Error): this {
    this.#stream.destroy(error ?? new Error("the answer broke off"));
    return this;
  }

  override flushHeaders(): void {
    if (!this.#begun) this.writeHead(this.statusCode);
  }

  override writeContinue(): void {
    const { destroyed, closed } = this.#stream;
    if (!destroyed && !closed) this.#stream.additionalHeaders({ ":status": 100 });
  }
}

const namesOf = (headers: OutgoingHttpHeaders | OutgoingHttpHeader[] | undefined): string[] =>
  Array.isArray(headers) ? headers.filter((_, at) => at % 2 === 0).map(String) : Object.keys(headers ?? {});

const toBytes = (chunk: string | Uint8Array, encoding: unknown): Uint8Array =>
  typeof chunk === "string"
    ? Buffer.from(chunk, typeof encoding === "string" ? (encoding as BufferEncoding) : "utf8")
    : chunk;

/** Drops repeated headers: a sandbox's server may repeat headers that HTTP/2 allows once. */
function firstOfEach(headers: readonly string[]): string[] {
  const seen = new Set<string>();
  const kept: string[] = [];
  for (let index = 0; index + 1 < headers.length; index += 2) {
    const name = headers[index] as string;
    if (name !== "set-cookie" && seen.has(name)) continue;
    seen.add(name);
    kept.push(name, headers[index + 1] as string);
  }
  return kept;
}

export class Http2Wire implements ClientWire {
  readonly isHttp2 = true;
  readonly socket: Socket;
  readonly #stream: ServerHttp2Stream;

  constructor(stream: ServerHttp2Stream, socket: Socket) {
    this.#stream = stream;
    this.socket = socket;
  }

  /** Never closes with NO_ERROR, which would end the stream as if it were complete. */
  cut(code: number = constants.NGHTTP2_INTERNAL_ERROR): void {
    if (code === constants.NGHTTP2_NO_ERROR || code === constants.NGHTTP2_INTERNAL_ERROR)
      this.#stream.destroy(new Error("the answer broke off"));
    else this.#stream.close(code);
  }

  drop(): void {
    this.#stream.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
    this.#stream.destroy();
  }

  accept(_reason: string, headers: RawHeaders): Duplex {
    const all: string[] = [":status", "200"];
    for (let index = 0; index + 1 < headers.length; index += 2) {
      const name = (headers[index] as string).toLowerCase();
      // RFC 8441, 5: the key and its echo have no meaning here.
      if (name !== "sec-websocket-accept" && !ofConnections.has(name))
        all.push(name, headers[index + 1] as string);
    }
    this.#stream.respond(all);
    return this.#stream;
  }
}
