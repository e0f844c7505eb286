/**
 * Reads the first bytes of a connection, before node's parser does: which protocol it speaks, and how the lines of its
 * first head end. Proxies accept a bare LF as CRLF and skip empty lines before the request line (RFC 9112, 2.2); node's
 * parser does only the second. Here, and only here, a head with bare LFs is rewritten with CRLF.
 *
 *   bytes ──┬─ the preface of HTTP/2 ──▶ http2
 *           ├─ a whole head, every line ended by CRLF ──▶ http1
 *           ├─ a whole head with a bare LF ──rewritten──▶ http1-once
 *           └─ with both kinds, and a body or an upgrade ──▶ refused
 *
 * This allows no request smuggling. The bytes after such a head are parsed strictly, and the connection carries no
 * other request, so none of them becomes a second request. A proxy before the edge that treats a bare LF as part of a
 * header's value writes CRLF itself, so its requests have both line ends: if such a head has a framing header, the
 * request is refused.
 */
import type { Socket } from "node:net";

/** `http1-once`: the connection may carry this one request. */
export type FirstHead = "http1" | "http1-once" | "http2";
/** `none`: no byte arrived. `mixed`: the head has both line ends, and a body or an upgrade. */
export type FirstHeadFailure = "timeout" | "ended" | "none" | "mixed";

export interface FirstHeadOptions {
  /** The connection may begin with the preface of HTTP/2 (RFC 9113, 3.3). */
  mayBeHttp2: boolean;
  maxBytes: number;
  timeoutMs: number;
  /** Called with the socket paused, and the bytes read put back into it. */
  onHead(kind: FirstHead): void;
  /** Called when there is no head to parse. */
  onFailure(why: FirstHeadFailure): void;
}

/** A head in more pieces than this is left to node's parser, which does not start again with each piece. */
const mostPieces = 256;
const preface = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
const LF = 10;
const CR = 13;
/** Headers that decide where the request ends: a proxy that reads them differently would see another end. */
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
      // Node's parser then reports what is wrong with it.
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

/** Whether the bytes so far are the beginning of HTTP/2's preface. */
function isPreface(bytes: Buffer): boolean {
  const length = Math.min(bytes.length, preface.length);
  return bytes.compare(preface, 0, length, 0, length) === 0;
}

const isBinary = (bytes: Buffer): boolean => {
  const first = bytes[0] ?? CR;
  return first < 32 && first !== CR && first !== LF;
};

/** `end`: start of the body; undefined: head not complete. `bare`: a line ends without CR; `isMixed`: others do. */
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

/** The head up to `end`, with CRLF after each line, and without empty lines before it. */
function withCrlf(bytes: Buffer, end: number): string {
  const lines = bytes.toString("latin1", 0, end).split("\n");
  const text = lines.map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line)).join("\r\n");
  return text.replace(/^(?:\r\n)+/, "");
}
