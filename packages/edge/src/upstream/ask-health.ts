import type { AgentConnection } from "./agent-connection.ts";

/** Asks an agent over a new connection whether it is well. Calls `done` when the connection is idle again, or closed. */
export function askHealth(connection: AgentConnection, timeoutMs: number, done: () => void): void {
  const over = (): void => {
    clearTimeout(deadline);
    // The connection goes back to its pool in this turn of the event loop.
    queueMicrotask(done);
  };
  const deadline = setTimeout(() => {
    connection.abandon();
    over();
  }, timeoutMs);
  connection.start(
    {
      onContinue() {},
      onHead() {},
      onBody() {},
      onDone: over,
      onUpgrade(_head, socket) {
        socket.destroy();
        over();
      },
      onDrain() {},
      onFailure: over,
    },
    false,
  );
  connection.write("GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n");
  connection.requestSent();
}
