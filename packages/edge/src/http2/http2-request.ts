/**
 * An HTTP/2 request in the form of node's HTTP/1.1 message, so that routing, forwarding and answering are the same for
 * both. Requests reach sandboxes as HTTP/1.1, so a request that cannot be written so is refused (`problem`).
 */
import { randomBytes } from "node:crypto";
import { IncomingMessage } from "node:http";
import { constants, type IncomingHttpHeaders, type ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import { asciiTarget } from "../exchange/first-bytes.ts";
import type { RawHeaders } from "../exchange/headers.ts";

const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const target = /^[\x21-\x7e]+$/;
/** `:protocol` of the one extended CONNECT that is offered (RFC 8441). */
const websocket = "websocket";

export class Http2Request extends IncomingMessage {
  readonly stream: ServerHttp2Stream;
  /** Why the request cannot be forwarded. */
  readonly problem: string | undefined;
  /** The request asks for a WebSocket. */
  readonly isUpgrade: boolean;
  /** Called when the body is read. */
  readonly #onRead: () => void;
  /** Bytes of the body that have arrived. */
  bodyBytes = 0;

  constructor(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    rawHeaders: readonly string[],
    socket: Socket,
    onRead: () => void = () => undefined,
  ) {
    super(socket);
    this.stream = stream;
    this.#onRead = onRead;
    this.httpVersion = "2.0";
    this.httpVersionMajor = 2;
    this.httpVersionMinor = 0;
    this.method = headers[":method"] ?? "";
    this.url = asciiTarget(headers[":path"] ?? "");
    this.isUpgrade = this.method === "CONNECT" && headers[":protocol"] === websocket;
    this.problem = problemOf(this, headers);
    this.headers = headers;
    const authority = headers[":authority"] ?? headers.host;
    if (authority !== undefined) headers.host = authority;
    this.rawHeaders = plainHeaders(headers, rawHeaders);
    const hasBody = !stream.endAfterHeaders && !this.isUpgrade;
    if (this.isUpgrade) this.#becomeUpgrade();
    // The framing of the body on its way to the sandbox.
    else if (hasBody && headers["content-length"] === undefined) headers["transfer-encoding"] = "chunked";
    if (hasBody) this.#receive();
    else {
      this.complete = true;
      this.push(null);
      if (!this.isUpgrade) stream.resume();
    }
  }

  /** Turns the request into HTTP/1.1's form for a WebSocket (RFC 6455); the key is only for the server's check. */
  #becomeUpgrade(): void {
    this.method = "GET";
    this.headers.upgrade = websocket;
    if (this.headers["sec-websocket-key"] === undefined)
      this.rawHeaders.push("Sec-WebSocket-Key", randomBytes(16).toString("base64"));
  }

  #receive(): void {
    const { stream } = this;
    stream.on("data", (chunk: Buffer) => {
      this.bodyBytes += chunk.length;
      if (!this.push(chunk)) stream.pause();
    });
    stream.once("end", () => {
      // A reset stream ends too, but its body is not complete.
      if (stream.aborted || stream.rstCode !== constants.NGHTTP2_NO_ERROR) return;
      this.complete = true;
      this.push(null);
    });
    stream.pause();
  }

  override _read(): void {
    this.#onRead();
    this.stream.resume();
  }

  /** Leaves the socket alone: other streams use the connection too. */
  override _destroy(_error: Error | null, done: (error?: Error | null) => void): void {
    done(null);
  }
}

function problemOf(
  { method = "", url = "", isUpgrade }: Http2Request,
  headers: IncomingHttpHeaders,
): string | undefined {
  if (method === "CONNECT" && !isUpgrade) return "CONNECT is offered for WebSocket alone";
  if (!token.test(method)) return "the method is no HTTP method";
  if (!target.test(url)) return "the path holds characters that must be percent-encoded";
  const { ":authority": authority, host } = headers;
  if (authority !== undefined && host !== undefined && host.toLowerCase() !== authority.toLowerCase())
    return "Host and :authority are not the same";
  if (headers["transfer-encoding"] !== undefined) return "HTTP/2 has no Transfer-Encoding";
  return undefined;
}

/**
 * Headers as in HTTP/1.1: Host instead of the authority, and one Cookie header joined from several (RFC 9113, 8.2.3).
 */
function plainHeaders(headers: IncomingHttpHeaders, raw: readonly string[]): RawHeaders {
  const plain: RawHeaders = headers.host === undefined ? [] : ["host", headers.host];
  let hasCookie = false;
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index] as string;
    if (name.charCodeAt(0) === 0x3a || name === "host") continue;
    if (name !== "cookie") plain.push(name, raw[index + 1] as string);
    else if (!hasCookie) {
      hasCookie = true;
      plain.push(name, headers.cookie ?? "");
    }
  }
  return plain;
}
