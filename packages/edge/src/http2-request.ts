/**
 * A request of HTTP/2 in the form of node's HTTP/1.1 message, so that all that routes, forwards and answers is the same for both. What
 * reaches a sandbox is written as HTTP/1.1, so a request that could not be is refused (`problem`).
 */
import { randomBytes } from "node:crypto";
import { IncomingMessage } from "node:http";
import { constants, type IncomingHttpHeaders, type ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import type { RawHeaders } from "./headers.ts";

const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const target = /^[\x21-\x7e\x80-\xff]+$/;
/** `:protocol` of the one extended CONNECT that is offered (RFC 8441). */
const websocket = "websocket";

export class Http2Request extends IncomingMessage {
  readonly stream: ServerHttp2Stream;
  /** Why it cannot be passed on. */
  readonly problem: string | undefined;
  /** It asks for a WebSocket. */
  readonly isUpgrade: boolean;
  /** Bytes of the body that have come. */
  bodyBytes = 0;

  constructor(
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    rawHeaders: readonly string[],
    socket: Socket,
  ) {
    super(socket);
    this.stream = stream;
    this.httpVersion = "2.0";
    this.httpVersionMajor = 2;
    this.httpVersionMinor = 0;
    this.method = headers[":method"] ?? "";
    this.url = headers[":path"] ?? "";
    this.isUpgrade = this.method === "CONNECT" && headers[":protocol"] === websocket;
    this.problem = problemOf(this, headers);
    this.headers = headers;
    const authority = headers[":authority"] ?? headers.host;
    if (authority !== undefined) headers.host = authority;
    this.rawHeaders = plainHeaders(headers, rawHeaders);
    const hasBody = !stream.endAfterHeaders && !this.isUpgrade;
    if (this.isUpgrade) this.#becomeUpgrade();
    // How the body is framed on its way to the sandbox.
    else if (hasBody && headers["content-length"] === undefined) headers["transfer-encoding"] = "chunked";
    if (hasBody) this.#receive();
    else {
      this.complete = true;
      this.push(null);
      if (!this.isUpgrade) stream.resume();
    }
  }

  /** As a WebSocket is asked for in HTTP/1.1 (RFC 6455); the key is only for the server's own check. */
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
      // A stream that was reset ends too, but is not whole.
      if (stream.aborted || stream.rstCode !== constants.NGHTTP2_NO_ERROR) return;
      this.complete = true;
      this.push(null);
    });
    stream.pause();
  }

  override _read(): void {
    this.stream.resume();
  }

  /** The connection is other streams' too. */
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

/** As HTTP/1.1 has them: Host in place of the authority, and one Cookie of the crumbs (RFC 9113, 8.2.3). */
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
