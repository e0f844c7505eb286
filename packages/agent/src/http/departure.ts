import type { Exchange } from "./exchange.ts";

/**
 * Aborts when no client waits for the answer any more: the connection is closed, or the client has closed its sending side. The edge,
 * the only client, never closes only its sending side.
 */
export function departure({ request, response }: Exchange): AbortSignal {
  const gone = new AbortController();
  const { socket } = request;
  const leave = (): void => {
    socket.off("end", leave);
    gone.abort();
  };
  response.once("close", leave);
  socket.once("end", leave);
  if (response.destroyed || socket.readableEnded) leave();
  return gone.signal;
}

/** Whether the client is gone by the same rule. */
export const hasDeparted = ({ request, response }: Exchange): boolean =>
  response.destroyed || request.socket.readableEnded;
