import { connect, type Socket } from "node:net";

/** In this order: most servers listen on the first; a server that binds `localhost` may listen only on the second. */
const addresses = ["127.0.0.1", "::1"] as const;

/**
 * Connects to the server on `port` of the sandbox's loopback. Rejects with the first address's error if neither address accepts, and with
 * the reason of `signal` if that aborts before.
 */
export async function connectLoopback(
  port: number,
  signal: AbortSignal,
  options: { noDelay?: boolean; allowHalfOpen?: boolean } = {},
): Promise<Socket> {
  let first: unknown;
  for (const host of addresses) {
    const socket = connect({ host, port, ...options });
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const onAbort = (): void => reject(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
    socket.once("connect", resolve).once("error", reject);
    try {
      await promise;
      return socket;
    } catch (error) {
      socket.on("error", () => undefined);
      socket.destroy();
      first ??= error;
      signal.throwIfAborted();
    } finally {
      signal.removeEventListener("abort", onAbort);
      socket.off("error", reject);
    }
  }
  throw first;
}
