import { closeChannel, sendOn, subprotocol, writeOn } from "./channel-socket.ts";
import type { DataPlane } from "./data-plane.ts";
import { ClocheConnectionError } from "./errors.ts";
import type { CallOptions } from "./transport.ts";
import { opened, type WebSocketLike } from "./web-socket.ts";

const channels = { toServer: 0, fromServer: 1 } as const;
/** A WebSocket has no flow control for the receiver: with more unread bytes than this the connection is closed. */
const unreadBytes = 67_108_864;

/** A TCP connection to a server inside a sandbox. The loop over it ends when the server has ended its side. */
export class PortConnection implements AsyncIterable<Uint8Array<ArrayBuffer>, void> {
  readonly #socket: WebSocketLike;
  readonly #signal: AbortSignal | undefined;
  readonly #pieces: Uint8Array<ArrayBuffer>[] = [];
  #unread = 0;
  #over = false;
  #failure: Error | undefined;
  #wake: (() => void) | undefined;

  private constructor(socket: WebSocketLike, signal: AbortSignal | undefined) {
    this.#socket = socket;
    this.#signal = signal;
    socket.addEventListener("message", ({ data }) => this.#receive(new Uint8Array(data as ArrayBuffer)));
    socket.addEventListener("close", ({ code, reason }) => {
      if (!this.#over && code !== 1000)
        this.#failure ??= new ClocheConnectionError(
          `the connection to the port was lost (${code}) ${reason}`.trimEnd(),
        );
      this.#end();
    });
    signal?.addEventListener("abort", () => this.close(), { once: true });
  }

  /** `port`: port of a server on the sandbox's 127.0.0.1 or ::1. */
  static async open(dataPlane: DataPlane, port: number, options: CallOptions): Promise<PortConnection> {
    const socket = await dataPlane.socket(`/v1/ports/${port}/connect`, [subprotocol], options);
    const connection = new PortConnection(socket, options.signal);
    try {
      await opened(socket, options);
    } catch (error) {
      options.signal?.throwIfAborted();
      // A WebSocket does not tell why it was refused.
      const why = `port ${port} of the sandbox cannot be reached; most likely nothing listens on it`;
      throw new ClocheConnectionError(why, { cause: error, code: "unreachable" });
    }
    return connection;
  }

  /** Resolves when there is room for more. */
  async write(bytes: Uint8Array): Promise<void> {
    await writeOn(() => this.#socket, channels.toServer, bytes, this.#signal);
  }

  /** Ends the sending side; further data from the server still comes. */
  end(): void {
    sendOn(this.#socket, closeChannel, Uint8Array.of(channels.toServer));
  }

  /** Closes both directions. */
  close(): void {
    this.#socket.close(1000);
    this.#end();
  }

  /** `await using connection = await sandbox.connectPort(5432)` closes it. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array<ArrayBuffer>, void> {
    for (;;) {
      const piece = this.#pieces.shift();
      if (piece !== undefined) {
        this.#unread -= piece.length;
        yield piece;
      } else if (this.#failure !== undefined) throw this.#failure;
      else if (this.#over) return;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  #receive(message: Uint8Array<ArrayBuffer>): void {
    if (message[0] === closeChannel) return this.#end();
    if (message[0] !== channels.fromServer) return;
    this.#pieces.push(message.subarray(1));
    this.#unread += message.length - 1;
    if (this.#unread > unreadBytes) {
      this.#failure = new ClocheConnectionError("what the port sent was not read");
      this.#socket.close(1000);
    }
    this.#wake?.();
  }

  #end(): void {
    this.#over = true;
    this.#wake?.();
  }
}
