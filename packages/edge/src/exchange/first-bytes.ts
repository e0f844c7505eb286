/**
 * Reads the first line of a connection, before node's parser does.
 *
 *   bytes ──┬─ the preface of HTTP/2 (RFC 9113, 3.3) ──▶ http2
 *           ├─ a request line with bytes beyond ASCII in its target ──percent-encoded──▶ http1
 *           └─ anything else ──as it is──▶ http1
 *
 * Clients send a query in UTF-8 as it was typed; node's parser refuses such bytes. Percent-encoding changes neither the
 * meaning of a target nor where the request ends. Later requests of the connection are read by node's parser alone.
 */
import type { Socket } from "node:net";

export interface FirstBytesOptions {
  /** The connection may begin with the preface of HTTP/2. */
  mayBeHttp2: boolean;
  maxBytes: number;
  timeoutMs: number;
  /** Called with the socket paused, and the bytes put back into it. */
  onKnown(protocol: "http1" | "http2"): void;
  /** Called when there is no first line. `none`: no byte arrived. */
  onFailure(why: "timeout" | "ended" | "none"): void;
}

/** A line in more pieces than this is left to node's parser, which does not start again with each piece. */
const mostPieces = 256;
const preface = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
const lineFeed = 10;
const cr = 13;

export function readFirstBytes(socket: Socket, options: FirstBytesOptions): void {
  let bytes: Buffer = Buffer.alloc(0);
  let pieces = 0;
  const stop = (): void => {
    clearTimeout(timer);
    socket.off("data", onData).off("end", onEnd).off("close", stop);
  };
  const give = (protocol: "http1" | "http2"): void => {
    stop();
    socket.pause();
    socket.unshift(protocol === "http1" ? escaped(bytes) : bytes);
    options.onKnown(protocol);
  };
  const fail = (why: "timeout" | "ended" | "none"): void => {
    stop();
    options.onFailure(why);
  };
  const onData = (chunk: Buffer): void => {
    pieces += 1;
    bytes = bytes.length === 0 ? chunk : Buffer.concat([bytes, chunk]);
    if (options.mayBeHttp2 && isPreface(bytes)) {
      if (bytes.length >= preface.length) give("http2");
      return;
    }
    const isEnough = bytes.length > options.maxBytes || pieces > mostPieces || isBinary(bytes);
    if (isEnough || bytes.includes(lineFeed, lineStart(bytes))) give("http1");
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
  const first = bytes[0] ?? cr;
  return first < 32 && first !== cr && first !== lineFeed;
};

/** Where the first line that is not empty begins. */
function lineStart(bytes: Buffer): number {
  let at = 0;
  while (bytes[at] === cr || bytes[at] === lineFeed) at += 1;
  return at;
}

/** A target, given as latin1, whose bytes beyond ASCII are percent-encoded. */
export const asciiTarget = (target: string): string =>
  target.replaceAll(/[\x80-\xff]/g, (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase()}`);

/** The bytes with the request's target in ASCII. */
function escaped(bytes: Buffer): Buffer {
  const start = lineStart(bytes);
  const end = bytes.indexOf(lineFeed, start);
  const line = bytes.toString("latin1", start, end === -1 ? start : end);
  const [, method, target, version] = /^(\S+ )(\S*[\x80-\xff]\S*)( HTTP\/1\.\d\r)$/.exec(line) ?? [];
  if (target === undefined) return bytes;
  const head = `${method}${asciiTarget(target)}${version}`;
  return Buffer.concat([Buffer.from(head, "latin1"), bytes.subarray(end)]);
}
