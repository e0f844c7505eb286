import { ClocheConnectionError, ClocheSdkError } from "./errors.ts";
import type { CallOptions } from "./transport.ts";

/** What the SDK uses of a WebSocket: the browser's and Node's own fit, as does that of `@cloche/sdk/node`. */
export interface WebSocketLike {
  binaryType: string;
  readonly readyState: number;
  readonly bufferedAmount: number;
  send(data: Uint8Array<ArrayBuffer>): void;
  close(code?: number): void;
  addEventListener(type: "open" | "error", listener: () => void): void;
  addEventListener(type: "message", listener: (event: { data: unknown }) => void): void;
  addEventListener(type: "close", listener: (event: { code: number; reason: string }) => void): void;
}

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
