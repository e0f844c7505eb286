/**
 * Connections to PostgreSQL. One of them that cannot write leads to a server that was demoted, or that its provider made read-only; so do
 * all that are as old. They are closed when they come back, and the next statement gets a new connection, which may reach the new primary.
 */
import type { PostgresPool, PostgresPoolClient } from "kysely";
import pg from "pg";

export interface Connections extends PostgresPool {
  /** `hear` is called when older connections are given up; the answer ends that. */
  onMoved(listener: () => void): () => void;
  /** Gives up all present connections. */
  leave(): void;
}

/** `read_only_sql_transaction`: also what a standby answers. */
const readOnly = "25006";

/** `prepare`: called with each new connection. */
export function postgresConnections(
  options: pg.PoolConfig,
  onIdleError: (error: Error) => void,
  prepare: (client: pg.PoolClient) => void,
): Connections {
  const pool = new pg.Pool(options);
  const listeners = new Set<() => void>();
  /** Connections that may not be used again once they are released. */
  const given = new WeakSet<pg.PoolClient>();
  let present = new Set<pg.PoolClient>();

  const leave = (): void => {
    for (const client of present) given.add(client);
    present = new Set();
    for (const listener of listeners) listener();
  };
  // Without a listener, a connection that breaks while idle would end the process.
  pool.on("error", onIdleError);
  pool.on("remove", (client) => present.delete(client as pg.PoolClient));
  pool.on("connect", (client) => {
    present.add(client);
    // The same for one that breaks between two statements of a transaction: the next statement fails and tells its
    // caller.
    client.on("error", () => undefined);
    prepare(client);
    const query = client.query.bind(client) as (...args: unknown[]) => Promise<unknown>;
    const watched = async (...args: unknown[]): Promise<unknown> => {
      try {
        return await query(...args);
      } catch (error) {
        // A connection that was given up before says nothing about those made since.
        if ((error as { code?: string }).code === readOnly && present.has(client)) leave();
        throw error;
      }
    };
    client.query = watched as typeof client.query;
  });

  return {
    async connect() {
      for (;;) {
        const client = await pool.connect();
        if (given.has(client)) client.release(true);
        else return releasedWith(client, () => given.has(client));
      }
    },
    end: () => pool.end(),
    options: pool.options,
    onMoved(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    leave,
  };
}

/** The pool makes a new `release` for each use. */
function releasedWith(client: pg.PoolClient, isGivenUp: () => boolean): PostgresPoolClient {
  const release = client.release.bind(client);
  client.release = () => release(isGivenUp());
  return client as unknown as PostgresPoolClient;
}
