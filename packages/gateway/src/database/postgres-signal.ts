/**
 * LISTEN and NOTIFY between the gateways of a database. A NOTIFY in every transaction makes PostgreSQL commit one
 * transaction after the other, so each gateway sends at most one every 20 ms, in a statement of its own. If a
 * notification is lost, the follower's next look finds the changes.
 */
import pg from "pg";
import type { ChangeSignal } from "./change-log.ts";

const channel = "cloche_changes";
const batchMs = 20;
const reconnectMs = 1_000;

/**
 * `notify`: sends one notification in its own statement. `onError`: called when sending or listening fails. `onMoved`: hears that present
 * connections lead to a server that is no longer the primary, so that this listens anew.
 */
export function postgresSignal(
  url: string,
  notify: (channel: string) => Promise<void>,
  onError: (error: Error) => void,
  onMoved: (listener: () => void) => () => void,
): ChangeSignal {
  let isPending = false;
  return {
    send() {
      if (isPending) return;
      isPending = true;
      setTimeout(() => {
        isPending = false;
        notify(channel).catch(onError);
      }, batchMs).unref();
    },
    listen(listener) {
      const closed = new AbortController();
      const running = keepListening(url, listener, closed.signal, onError, onMoved);
      return {
        async close() {
          closed.abort();
          await running;
        },
      };
    },
  };
}

async function keepListening(
  url: string,
  listener: () => void,
  closed: AbortSignal,
  onError: (error: Error) => void,
  onMoved: (listener: () => void) => () => void,
): Promise<void> {
  while (!closed.aborted) {
    const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000, keepAlive: true });
    const over = Promise.withResolvers<void>();
    client.on("notification", listener);
    client.on("error", (error) => {
      onError(error);
      over.resolve();
    });
    client.on("end", over.resolve);
    const stop = (): void => over.resolve();
    const unhear = onMoved(stop);
    closed.addEventListener("abort", stop, { once: true });
    try {
      await client.connect();
      await client.query(`listen ${channel}`);
      // Notifications from before this connection are lost: look once.
      listener();
      if (!closed.aborted) await over.promise;
    } catch (error) {
      onError(error as Error);
    }
    closed.removeEventListener("abort", stop);
    unhear();
    await client.end().catch(() => undefined);
    if (closed.aborted) return;
    const again = Promise.withResolvers<void>();
    const timer = setTimeout(again.resolve, reconnectMs);
    closed.addEventListener("abort", () => again.resolve(), { once: true });
    await again.promise;
    clearTimeout(timer);
  }
}
