/** For Node: the client of `@cloche/sdk`, which also finds the service of this machine and trusts its authority. */
import { Cloche as PlatformCloche, type ClocheOptions } from "./index.ts";
import { type Connection, findConnection } from "./node-connection.ts";
import { nodeFetch } from "./node-fetch.ts";

export * from "./index.ts";
export {
  findConnection,
  findLocalService,
  type Connection,
  type LocalService,
  type NodeFetchOptions,
} from "./node-connection.ts";
export { nodeFetch, type NodeFetch } from "./node-fetch.ts";

/** Further options in Node. */
export interface NodeClocheOptions extends ClocheOptions {
  /** PEM of the authority of the edge's certificate. Default: the file CLOCHE_CA_CERT, else the local service's. */
  caCert?: string | undefined;
  /** The address for sandbox domains. Default: CLOCHE_EDGE_URL, else the local service's, else the domains are resolved. */
  edgeUrl?: string | undefined;
  /** Base domain of the sandboxes. Default: CLOCHE_BASE_DOMAIN, else the local service's, else `cloche.localhost`. */
  baseDomain?: string | undefined;
}

/**
 * The entry to Cloche.
 *
 * ```ts
 * await using cloche = new Cloche();
 * await using sandbox = await cloche.create({ name: "demo" });
 * const { stdout } = await sandbox.exec(["python3", "-c", "print(6 * 7)"]);
 * ```
 */
export class Cloche extends PlatformCloche {
  constructor(options: NodeClocheOptions = {}) {
    super(
      options.fetch === undefined
        ? connected(findConnection(process.env, options as Partial<Connection>), options)
        : options,
    );
  }
}

/** A client for exactly this connection, without values from the environment or this machine's service. */
export function connect(
  connection: Connection,
  options: Pick<ClocheOptions, "wrapStoreValues"> = {},
): Cloche {
  return new Cloche(connected(connection, options));
}

/** As `new Cloche()`, with another environment than the process's. */
export async function connectLocal(env: NodeJS.ProcessEnv = process.env): Promise<Cloche> {
  return connect(findConnection(env));
}

function connected(connection: Connection, options: ClocheOptions): ClocheOptions {
  const fetch = nodeFetch(connection);
  const { gatewayUrl, apiKey, useDomains = false } = connection;
  const webSocket = options.webSocket ?? fetch.webSocket;
  return { ...options, gatewayUrl, apiKey, useDomains, fetch, webSocket };
}
