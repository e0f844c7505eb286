import type { Exchange } from "./exchange.ts";

/**
 * Aborts when nobody waits for the answer any more: the connection has closed, or its client has shut its sending side. The
 * edge, which is the only client, never does that and reads on.
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

/** Whether that has happened. */
export const hasDeparted = ({ request, response }: Exchange): boolean =>
  response.destroyed || request.socket.readableEnded;
