/**
 * TLS 1.3 has messages that may come at any time after the handshake: a new key, and from a server a ticket. Nothing is told of them
 * to who reads, none is any data, and OpenSSL bounds neither. A far end can send a million of them in little more time than it takes
 * to read them, all within one turn of this process.
 */
import type { TLSSocket } from "node:tls";

/** Browsers and libraries send a new key after gigabytes, and servers some tickets at the beginning. */
const messagesMax = 64;
const withinMs = 60_000;

/** Ends a connection on which more of these messages come than anybody needs. Call it once for each connection. */
export function boundHandshakeMessages(socket: TLSSocket): void {
  let beganMs = 0;
  let messages = 0;
  const count = (): void => {
    const nowMs = performance.now();
    if (nowMs - beganMs > withinMs) {
      beganMs = nowMs;
      messages = 0;
    }
    messages += 1;
    // In the next turn, because OpenSSL is reading this connection now.
    if (messages === messagesMax) setImmediate(() => socket.destroy());
  };
  socket.on("keylog", count).on("session", count);
}
