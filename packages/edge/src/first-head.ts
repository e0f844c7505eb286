/**
 * Looks at the first bytes of a connection, before node's parser does: which protocol it speaks, and how the lines of its first head end. Proxies take a bare LF for
 * CRLF and skip empty lines before the request line (RFC 9112, 2.2); node's parser does the second alone. Such a head is rewritten
 * with CRLF, here and nowhere else.
 *
 *   bytes ──┬─ the preface of HTTP/2 ──▶ http2
 *           ├─ a whole head, every line ended by CRLF ──▶ http1
 *           ├─ a whole head with a bare LF ──rewritten──▶ http1-once
 *           └─ with both kinds, and a body or an upgrade ──▶ refused
 *
 * No request can be smuggled by it. What follows such a head is parsed strictly, and its connection carries no other request, so
 * nothing behind it is taken for one. A proxy before the edge that takes a bare LF for a part of a header's value writes CRLF itself,
 * so what it passes on has both kinds of ends: where we would see a length that it did not see, the request is refused.
 */
import type { Socket } from "node:net";

/** `http1-once`: the connection may carry this one request. */
export type FirstHead = "http1" | "http1-once" | "http2";
/** `none`: not a byte came. `mixed`: lines end in both ways, and it has a body. */
export type FirstHeadFailure = "timeout" | "ended" | "none" | "mixed";

export interface FirstHeadOptions {
  /** It may begin with the preface of HTTP/2 (RFC 9113, 3.3). */
  mayBeHttp2: boolean;
  maxBytes: number;
  timeoutMs: number;
  /** The bytes are in the socket again; it is paused. */
  onHead(kind: FirstHead): void;
  /** There is none that can be parsed. */
  onFailure(why: FirstHeadFailure): void;
}

/** In more pieces than this a head is left to the parser, which does not begin anew at each. */
const mostPieces = 256;
const preface = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
const LF = 10;
const CR = 13;
/** Whoever sees these lines otherwise than we do sees another end of the request. */
const framing = /^(?:content-length|transfer-encoding|upgrade)[ \t]*:/im;

export function readFirstHead(socket: Socket, options: FirstHeadOptions): void {
  let bytes: Buffer = Buffer.alloc(0);
  let pieces = 0;
  const stop = (): void => {
    clearTimeout(timer);
    socket.off("data", onData).off("end", onEnd).off("close", stop);
  };
  const give = (kind: FirstHead, text: Buffer): void => {
    stop();
    socket.pause();
    socket.unshift(text);
    options.onHead(kind);
  };
  const fail = (why: FirstHeadFailure): void => {
    stop();
    options.onFailure(why);
  };
  const onData = (chunk: Buffer): void => {
    pieces += 1;
    bytes = bytes.length === 0 ? chunk : Buffer.concat([bytes, chunk]);
    if (options.mayBeHttp2 && isPreface(bytes)) {
      if (bytes.length >= preface.length) give("http2", bytes);
      return;
    }
    const { end, bare, isMixed } = readHead(bytes);
    if (end === undefined) {
      // The parser says what is wrong with it.
      if (bytes.length > options.maxBytes || pieces > mostPieces || isBinary(bytes)) give("http1", bytes);
      return;
    }
    if (!bare) return give("http1", bytes);
    const head = withCrlf(bytes, end);
    if (isMixed && framing.test(head)) return fail("mixed");
    give("http1-once", Buffer.concat([Buffer.from(head, "latin1"), bytes.subarray(end)]));
  };
  const onEnd = (): void => fail(bytes.length === 0 ? "none" : "ended");
  const timer = setTimeout(() => fail("timeout"), options.timeoutMs);
  socket.on("data", onData).once("end", onEnd).once("close", stop);
}

/** So far. */
function isPreface(bytes: Buffer): boolean {
  const length = Math.min(bytes.length, preface.length);
  return bytes.compare(preface, 0, length, 0, length) === 0;
}

const isBinary = (bytes: Buffer): boolean => {
  const first = bytes[0] ?? CR;
  return first < 32 && first !== CR && first !== LF;
};

/** `end`: where the body begins; undefined: the head is not whole. `bare`: a line ends without CR; `isMixed`: another one with it. */
function readHead(bytes: Buffer): { end: number | undefined; bare: boolean; isMixed: boolean } {
  let bare = false;
  let whole = false;
  let lineStart = 0;
  let hasRequestLine = false;
  let end: number | undefined;
  for (let at = bytes.indexOf(LF); at !== -1 && end === undefined; at = bytes.indexOf(LF, lineStart)) {
    const hasCr = at > lineStart && bytes[at - 1] === CR;
    const isEmpty = at - (hasCr ? 1 : 0) === lineStart;
    bare ||= !hasCr;
    whole ||= hasCr;
    lineStart = at + 1;
    if (!isEmpty) hasRequestLine = true;
    else if (hasRequestLine) end = lineStart;
  }
  return { end, bare, isMixed: bare && whole };
}

/** The head that ends there with each line ended by CRLF, and without empty lines before it. */
function withCrlf(bytes: Buffer, end: number): string {
  const lines = bytes.toString("latin1", 0, end).split("\n");
  const text = lines.map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line)).join("\r\n");
  return text.replace(/^(?:\r\n)+/, "");
}
