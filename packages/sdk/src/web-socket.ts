import { ClocheConnectionError, ClocheSdkError } from "./errors.ts";
import type { CallOptions } from "./transport.ts";

/** What the SDK uses of a WebSocket: the browser's and Node's own fit, as does that of `@cloche/sdk/node`. */
export interface WebSocketLike {
  /** Set to `arraybuffer`. */
  binaryType: string;
  /** 1: open. */
  readonly readyState: number;
  /** Bytes that are not sent yet. */
  readonly bufferedAmount: number;
  /** One binary message. */
  send(data: Uint8Array<ArrayBuffer>): void;
  /** With the code 1000 where none is given. */
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

/** The platform's own, where it has one. */
export const platformWebSocket: OpenWebSocket = (url, protocols) => {
  const Socket = (globalThis as { WebSocket?: new (url: string, protocols: string[]) => unknown }).WebSocket;
  if (Socket === undefined)
    throw new ClocheSdkError("this platform has no WebSocket; pass one as `webSocket`", {
      code: "unsupported_runtime",
    });
  return new Socket(url, protocols) as WebSocketLike;
};

/** Resolves once it is open; what a server refuses ends with the close's reason. */
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
