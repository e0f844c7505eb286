/**
 * Bounds the bytes of an HTTP/2 connection that are neither heads nor bodies: window updates, priorities, empty and
 * unknown frames, heads that are refused. Node tells of few of these, and a turn of the event loop reads a hundred
 * thousand of them. What is known of is subtracted from the bytes that were read; a client that sends more of the rest
 * than its requests and answers need is cut off.
 *
 * Looked at every second, and after each turn that took long, in which such frames may have been read.
 */
import { constants, type Http2Session, type Http2Stream } from "node:http2";
import type { Socket } from "node:net";
import { otherFrames } from "./bounds.ts";
import { LongTurns } from "./long-turns.ts";

const frameHeadBytes = 9;
const lookMs = 1_000;
const longTurnMs = 4;

const accounts = new Map<Http2Session, Account>();
const longTurns = new LongTurns(longTurnMs, () => {
  for (const account of accounts.values()) account.look();
});

class Account {
  readonly #session: Http2Session;
  readonly #socket: Pick<Socket, "bytesRead" | "bytesWritten">;
  readonly #end: () => void;
  #left: number = otherFrames.firstBytes;
  #lookedMs = performance.now();
  #read: number;
  #written: number;
  #known = 0;

  constructor(session: Http2Session, socket: Pick<Socket, "bytesRead" | "bytesWritten">, end: () => void) {
    this.#session = session;
    this.#socket = socket;
    this.#end = end;
    this.#read = socket.bytesRead;
    this.#written = socket.bytesWritten;
  }

  begun({ endAfterHeaders }: Http2Stream): void {
    this.#known += otherFrames.headBytes + (endAfterHeaders ? 0 : otherFrames.windowBytes);
  }

  gotBody(bytes: number): void {
    this.#known += bytes + frameHeadBytes;
  }

  look(): void {
    // The socket of a session that is over throws (ERR_HTTP2_SOCKET_UNBOUND).
    if (this.#session.destroyed) return;
    const { bytesRead, bytesWritten } = this.#socket;
    const nowMs = performance.now();
    const { mostBytes, bytesPerSecond, shareOfWritten } = otherFrames;
    const gained =
      this.#known +
      (bytesWritten - this.#written) * shareOfWritten +
      ((nowMs - this.#lookedMs) / 1_000) * bytesPerSecond;
    this.#left = Math.min(mostBytes, this.#left + gained - (bytesRead - this.#read));
    this.#known = 0;
    this.#read = bytesRead;
    this.#written = bytesWritten;
    this.#lookedMs = nowMs;
    if (this.#left < 0) this.#end();
  }
}

/**
 * `socket`: the connection below the session. Of its streams and their bodies `paceStream` tells, or `countStream`: call
 * one of them for each.
 */
export function boundOtherFrames(
  session: Http2Session,
  socket: Pick<Socket, "bytesRead" | "bytesWritten">,
  end = (): void => session.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM),
): void {
  const account = new Account(session, socket, end);
  accounts.set(session, account);
  longTurns.begin();
  const look = setInterval(() => account.look(), lookMs);
  look.unref();
  session.once("close", () => {
    clearInterval(look);
    accounts.delete(session);
    if (accounts.size === 0) longTurns.end();
  });
}

/** Tells of a stream; the answer is called with the bytes of each piece of its body. Nothing is told where no bound is. */
export function beganStream(stream: Http2Stream): (bytes: number) => void {
  const account = stream.session && accounts.get(stream.session);
  account?.begun(stream);
  return (bytes) => account?.gotBody(bytes);
}

/** For a stream that is not paced. */
export function countStream(stream: Http2Stream): void {
  const gotBody = beganStream(stream);
  const push = stream.push.bind(stream);
  stream.push = (piece: unknown, encoding?: BufferEncoding): boolean => {
    if (piece instanceof Uint8Array) gotBody(piece.length);
    return push(piece, encoding);
  };
}
