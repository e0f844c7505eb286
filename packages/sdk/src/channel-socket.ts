/** Kubernetes' channel protocol (docs/processes.md, Attach): each message begins with the number of its channel. */
import { sleep } from "./transport.ts";
import type { WebSocketLike } from "./web-socket.ts";

export const subprotocol = "v5.channel.k8s.io";
/** The channel whose messages end another. */
export const closeChannel = 255;
/** Largest message. */
const messageBytes = 64 * 1024;
/** With more unsent bytes than this, a writer waits for the network. */
const bufferedBytes = 1_048_576;

/** Sends one message; nothing on a socket that is not open. */
export function sendOn(socket: WebSocketLike | undefined, channel: number, data: Uint8Array): void {
  if (socket?.readyState !== 1) return;
  const message = new Uint8Array(data.length + 1);
  message[0] = channel;
  message.set(data, 1);
  socket.send(message);
}

/** Sends bytes, and resolves when there is room for more. `socket` answers the one that is open now. */
export async function writeOn(
  socket: () => WebSocketLike | undefined,
  channel: number,
  bytes: Uint8Array,
  signal: AbortSignal | undefined,
): Promise<void> {
  for (let at = 0; at < bytes.length; at += messageBytes) {
    sendOn(socket(), channel, bytes.subarray(at, at + messageBytes));
    while (socket()?.readyState === 1 && (socket()?.bufferedAmount ?? 0) > bufferedBytes)
      await sleep(5, signal);
  }
}
