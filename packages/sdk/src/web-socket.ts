import { ClocheConnectionError, ClocheSdkError } from "./errors.ts";
import type { CallOptions } from "./transport.ts";

/** The parts of a WebSocket that the SDK uses: that of browsers or Node, or of `@cloche/sdk/node`. */
export interface WebSocketLike {
  /** Set to `arraybuffer`. */
  binaryType: string;
  /** 1: open. */
  readonly readyState: number;
  /** Bytes that are not sent yet. */
  readonly bufferedAmount: number;
  /** Sends one binary message. */
  send(data: Uint8Array<ArrayBuffer>): void;
  /** Closes the connection; default code 1000. */
  close(code?: number): void;
  /** As the platform's own. */
  addEventListener(type: "open" | "error", listener: () => void): void;
  /** As the platform's own. */
  addEventListener(type: "message", listener: (event: { data: unknown }) => void): void;
  /** As the platform's own. */
  addEventListener(type: "close", listener: (event: { code: number; reason: string }) => void): void;
}

/** Opens a WebSocket with these subprotocols. */
export type OpenWebSocket = (url: string, protocols: string[]) => WebSocketLike | Promise<WebSocketLike>;

/** Opens the platform's WebSocket; throws if the platform has none. */
export const platformWebSocket: OpenWebSocket = (url, protocols) => {
  const Socket = (globalThis as { WebSocket?: new (url: string, protocols: string[]) => unknown }).WebSocket;
  if (Socket === undefined)
    throw new ClocheSdkError("this platform has no WebSocket; pass one as `webSocket`", {
      code: "unsupported_runtime",
    });
  return new Socket(url, protocols) as WebSocketLike;
};

/** Resolves when the socket is open. If the server refuses, rejects with the reason of the close. */
export function opened(socket: WebSocketLike, { signal }: CallOptions): Promise<void> {
  socket.binaryType = "arraybuffer";
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      socket.close();
      reject(signal?.reason as Error);
    };
    if (signal?.aborted) return abort();
    signal?.addEventListener("abort", abort, { once: true });
    socket.addEventListener("open", () => resolve());
    socket.addEventListener("close", ({ code, reason }) => {
      signal?.removeEventListener("abort", abort);
      reject(new ClocheConnectionError(`the WebSocket could not be opened (${code}) ${reason}`.trimEnd()));
    });
  });
}
