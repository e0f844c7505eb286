/**
 * The server's end of one WebSocket (RFC 6455), over a socket that was upgraded.
 *
 *     open ──close(), or a fault of the client──▶ closing ──its close frame, or a timeout──▶ closed
 *       └──its close frame──▶ (answered) closed        └── either half of the connection is lost ──▶ closed
 *
 * One message of the client is handled at a time, and nothing more is read meanwhile, so that a program that does not read its input slows
 * its client down.
 */
import type { Duplex } from "node:stream";
import { GatheredBytes } from "@cloche/protocol";
import { type Frame, frameHead, FrameReader, opcodes, WebSocketError } from "./frames.ts";

export interface WebSocketListener {
  /** Handles a whole message. Nothing more is read before the promise resolves; a `WebSocketError` closes the connection. */
  onMessage(data: Buffer, kind: "text" | "binary"): void | Promise<void>;
}

const closeWaitMs = 5_000;
const normalClosure = 1_000;

export class WebSocketConnection {
  readonly socket: Duplex;
  /** Aborts when the client is gone or the connection is closing: nothing can be sent any more. */
  readonly over: AbortSignal;
  readonly #over = new AbortController();
  readonly #listener: WebSocketListener;
  readonly #reader: FrameReader;
  readonly #maxBytes: number;
  readonly #fragments = new GatheredBytes();
  #fragmentKind: "text" | "binary" | undefined;
  #working = false;
  #closing = false;

  constructor(socket: Duplex, head: Buffer, maxBytes: number, listener: WebSocketListener) {
    this.socket = socket;
    this.#listener = listener;
    this.#maxBytes = maxBytes;
    this.#reader = new FrameReader(maxBytes);
    this.over = this.#over.signal;
    socket.on("data", (chunk: Buffer) => this.#take(chunk));
    // A half-closed connection is lost, unless a close frame was sent before.
    socket.on("end", () => (this.#closing ? socket.end() : socket.destroy()));
    socket.on("error", () => socket.destroy());
    socket.on("close", () => this.#over.abort());
    if (head.length > 0) this.#take(head);
  }

  /** Sends one binary message: `prefix` and then `data`. False: the socket's buffer is full. */
  send(prefix: number, data: Buffer): boolean {
    if (this.#closing || this.socket.destroyed) return false;
    const { socket } = this;
    socket.cork();
    socket.write(frameHead(opcodes.binary, data.length, prefix));
    const room = socket.write(data);
    socket.uncork();
    return room;
  }

  /** Sends a close frame. The connection ends when the client has answered it, or after a timeout. */
  close(code: number = normalClosure, reason = ""): void {
    if (this.#closing) return;
    this.#closing = true;
    const { socket } = this;
    const payload = Buffer.concat([Buffer.from([code >> 8, code & 0xff]), shortened(reason)]);
    if (!socket.destroyed) {
      socket.write(Buffer.concat([frameHead(opcodes.close, payload.length), payload]));
      const timer = setTimeout(() => socket.destroy(), closeWaitMs);
      socket.once("close", () => clearTimeout(timer));
      socket.resume();
    }
    this.#over.abort();
  }

  #take(chunk: Buffer): void {
    this.#reader.push(chunk);
    if (!this.#working) void this.#work();
  }

  async #work(): Promise<void> {
    this.#working = true;
    try {
      for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) {
        const taking = this.#onFrame(frame);
        if (taking === undefined) continue;
        this.socket.pause();
        await taking;
        this.socket.resume();
      }
    } catch (error) {
      this.socket.resume();
      const fault = error instanceof WebSocketError ? error : new WebSocketError(1011, "internal error");
      this.close(fault.code, fault.message);
    } finally {
      this.#working = false;
    }
  }

  #onFrame({ fin, opcode, payload }: Frame): void | Promise<void> {
    if (opcode === opcodes.close) return this.#onClose(payload);
    if (this.#closing) return undefined;
    if (opcode === opcodes.ping) {
      // A client that sends pings and does not read gets no pongs, so that they do not pile up here.
      if (this.socket.writableNeedDrain) return undefined;
      this.socket.write(Buffer.concat([frameHead(opcodes.pong, payload.length), payload]));
      return undefined;
    }
    if (opcode === opcodes.pong) return undefined;
    return this.#onData(fin, opcode, payload);
  }

  #onData(fin: boolean, opcode: number, payload: Buffer): void | Promise<void> {
    const continues = opcode === opcodes.continuation;
    if (continues !== (this.#fragmentKind !== undefined)) {
      throw new WebSocketError(
        1002,
        continues ? "there is nothing to continue" : "a message was not finished",
      );
    }
    const kind = this.#fragmentKind ?? (opcode === opcodes.text ? "text" : "binary");
    if (fin && !continues) return this.#listener.onMessage(payload, kind);
    if (this.#fragments.length + payload.length > this.#maxBytes) {
      throw new WebSocketError(1009, `a message must not be larger than ${this.#maxBytes} bytes`);
    }
    this.#fragments.push(payload);
    this.#fragmentKind = fin ? undefined : kind;
    if (!fin) return undefined;
    const { buffer, byteOffset, length } = this.#fragments.take();
    return this.#listener.onMessage(Buffer.from(buffer, byteOffset, length), kind);
  }

  /** Answers the client's close frame and ends the connection. */
  #onClose(payload: Buffer): void {
    if (payload.length === 1) throw new WebSocketError(1002, "a close frame needs a whole code");
    const code = payload.length >= 2 ? payload.readUInt16BE(0) : normalClosure;
    this.close(isSendable(code) ? code : 1002);
    this.socket.end();
    const timer = setTimeout(() => this.socket.destroy(), closeWaitMs);
    this.socket.once("close", () => clearTimeout(timer));
  }
}

/** Whether a close frame may carry the code (RFC 6455, 7.4). */
const isSendable = (code: number): boolean =>
  (code >= 1_000 && code <= 1_014 && ![1_004, 1_005, 1_006].includes(code)) ||
  (code >= 3_000 && code <= 4_999);

/** Shortens a reason to the 123 bytes of a close frame, at a whole character. */
function shortened(reason: string): Buffer {
  let text = reason;
  while (Buffer.byteLength(text) > 123) text = text.slice(0, -1);
  return Buffer.from(text);
}
