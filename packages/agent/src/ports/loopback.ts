import { connect, type Socket } from "node:net";

/** In this order: most servers listen on the first; one that asks for `localhost` may listen on the second alone. */
const addresses = ["127.0.0.1", "::1"] as const;

/**
 * A connection to what listens on `port` of the sandbox's own loopback. Rejects with the first address's error where neither
 * accepts, with `signal`'s reason when it aborts before.
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
