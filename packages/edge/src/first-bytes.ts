/**
 * Tells which protocol a connection without TLS speaks, by its first bytes: the preface of HTTP/2 (RFC 9113, 3.3), or
 * anything else, which is for the parser of HTTP/1.1. Over TLS the handshake (ALPN) has agreed on it.
 */
import type { Socket } from "node:net";

const preface = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");

/**
 * Calls `onKnown` once with the socket paused and the bytes read put back into it; without enough bytes within
 * `timeoutMs`, the parser of HTTP/1.1 decides. Not called when the socket is closed before.
 */
export function readFirstBytes(
  socket: Socket,
  timeoutMs: number,
  onKnown: (protocol: "http1" | "http2") => void,
): void {
  let bytes: Buffer = Buffer.alloc(0);
  const stop = (): void => {
    clearTimeout(timer);
    socket.off("data", onData).off("end", onEnd).off("close", stop);
  };
  const give = (protocol: "http1" | "http2"): void => {
    stop();
    socket.pause();
    if (bytes.length > 0) socket.unshift(bytes);
    onKnown(protocol);
  };
  const onData = (chunk: Buffer): void => {
    bytes = bytes.length === 0 ? chunk : Buffer.concat([bytes, chunk]);
    const length = Math.min(bytes.length, preface.length);
    if (bytes.compare(preface, 0, length, 0, length) !== 0) give("http1");
    else if (length === preface.length) give("http2");
  };
  const onEnd = (): void => {
    stop();
    socket.end();
  };
  const timer = setTimeout(() => give("http1"), timeoutMs);
  socket.on("data", onData).once("end", onEnd).once("close", stop);
}
