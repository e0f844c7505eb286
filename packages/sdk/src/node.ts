/**
 * For Node: a `fetch` that trusts the service's own CA and reaches sandbox domains that do not resolve, and finding a service on this machine.
 * undici's fetch and Agent both come from the undici package, since Node's built-in fetch does not take another's Agent.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createSecureContext, rootCertificates } from "node:tls";
import {
  Agent,
  buildConnector,
  type Dispatcher,
  request,
  fetch as undiciFetch,
  WebSocket as UndiciWebSocket,
  type RequestInit as UndiciRequestInit,
} from "undici";
import { Cloche, type ClocheOptions } from "./cloche.ts";
import { ClocheConnectionError, ClocheSdkError } from "./errors.ts";
import type { Fetch, FetchResponse } from "./fetch.ts";
import type { OpenWebSocket, WebSocketLike } from "./web-socket.ts";

export * from "./index.ts";

export interface NodeFetchOptions {
  /** PEM of the authority that signed the edge's certificate; trusted besides the public ones. */
  caCert?: string | undefined;
  /**
   * Where sandbox domains are reached: `https://127.0.0.1:7443`. Connections to `*.<baseDomain>` go there, with the domain as SNI and Host, so nothing
   * needs to resolve.
   */
  edgeUrl?: string | undefined;
  baseDomain?: string | undefined;
}

export type NodeFetch = Fetch & { webSocket: OpenWebSocket; close(): Promise<void> };

/** A `fetch` with no time limit of its own (a command may run for days) and its own pool of connections. `close` ends them. */
export function nodeFetch(options: NodeFetchOptions = {}): NodeFetch {
  const { caCert, edgeUrl, baseDomain } = options;
  // Made once: reading all authorities takes ten milliseconds, which each new connection would wait for.
  const secureContext =
    caCert === undefined ? undefined : createSecureContext({ ca: [...rootCertificates, caCert] });
  const connect = buildConnector(secureContext === undefined ? {} : { secureContext });
  const edge = edgeUrl === undefined ? undefined : new URL(edgeUrl);
  const suffix = baseDomain === undefined ? undefined : `.${baseDomain.toLowerCase()}`;
  const agent = new Agent({
    headersTimeout: 0,
    bodyTimeout: 0,
    keepAliveTimeout: 30_000,
    connect: (target, done) => {
      const isSandbox = suffix !== undefined && target.hostname.toLowerCase().endsWith(suffix);
      if (edge === undefined || !isSandbox) return connect(target, done);
      const { hostname, port } = edge;
      return connect(
        {
          ...target,
          hostname,
          host: edge.host,
          port: port === "" ? "443" : port,
          servername: target.hostname,
        },
        done,
      );
    },
  });
  const fetch: Fetch = async (url, init) => {
    const { body } = init;
    if (typeof body === "string" || body === undefined) return requested(agent, url, init);
    return undiciFetch(url, { ...(init as UndiciRequestInit), dispatcher: agent }) as Promise<FetchResponse>;
  };
  const webSocket: OpenWebSocket = (url, protocols) =>
    new UndiciWebSocket(url, { protocols, dispatcher: agent }) as unknown as WebSocketLike;
  return Object.assign(fetch, { webSocket, close: () => agent.close() });
}

/** Without fetch's own streams, which took a tenth of a brief exec's time. It follows no redirect either. */
async function requested(dispatcher: Agent, url: string, init: RequestInit): Promise<FetchResponse> {
  const { statusCode, statusText, headers, body } = await request(url, {
    dispatcher,
    method: (init.method ?? "GET") as Dispatcher.HttpMethod,
    headers: init.headers as Record<string, string>,
    body: (init.body as string | undefined) ?? null,
    signal: init.signal ?? null,
  });
  return {
    ok: statusCode >= 200 && statusCode < 300,
    status: statusCode,
    statusText,
    headers: {
      get(name) {
        const value = headers[name.toLowerCase()];
        return Array.isArray(value) ? value.join(", ") : (value ?? null);
      },
    },
    get body() {
      return body.body as unknown as ReadableStream<Uint8Array<ArrayBuffer>>;
    },
    json: () => body.json(),
    text: () => body.text(),
    arrayBuffer: () => body.arrayBuffer(),
  };
}

/** Where a service on this machine is, as `cloche status --json` prints it. */
export interface LocalService {
  gateway_url: string;
  edge_url: string;
  /** Where MCP clients connect over HTTP; absent where it is switched off. */
  mcp_url?: string;
  base_domain: string;
  /** File with the CA's PEM. */
  ca_cert: string;
  api_key: string;
  runtime: string;
  version: string;
  pid: number;
  ready: boolean;
}

/** The service of a CLOCHE_HOME (default `/var/lib/cloche`); undefined where none has run. */
export async function findLocalService(home: string): Promise<LocalService | undefined> {
  try {
    return JSON.parse(await readFile(join(home, "run", "status.json"), "utf8")) as LocalService;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new ClocheSdkError(`cannot read the service's status in ${home}: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

/** How to reach a service: from the environment, else from the service on this machine. */
export interface Connection extends NodeFetchOptions {
  gatewayUrl: string;
  apiKey: string;
}

/**
 * Reads CLOCHE_GATEWAY_URL, CLOCHE_API_KEY, CLOCHE_CA_CERT (a file), CLOCHE_EDGE_URL and CLOCHE_BASE_DOMAIN; what they leave out comes from the
 * service of CLOCHE_HOME, unless CLOCHE_GATEWAY_URL names another one. Throws naming what is missing.
 */
export async function findConnection(env: NodeJS.ProcessEnv = process.env): Promise<Connection> {
  const elsewhere = env.CLOCHE_GATEWAY_URL !== undefined && env.CLOCHE_GATEWAY_URL !== "";
  const local = await findLocalService(env.CLOCHE_HOME || "/var/lib/cloche");
  const here = elsewhere && local?.gateway_url !== env.CLOCHE_GATEWAY_URL ? undefined : local;
  const gatewayUrl = env.CLOCHE_GATEWAY_URL || here?.gateway_url;
  const apiKey = env.CLOCHE_API_KEY || here?.api_key;
  if (gatewayUrl === undefined) {
    throw new ClocheConnectionError(
      "no service found: start one with `npm start`, or set CLOCHE_GATEWAY_URL and CLOCHE_API_KEY",
    );
  }
  if (apiKey === undefined) throw new ClocheSdkError(`set CLOCHE_API_KEY to an API key of ${gatewayUrl}`);
  const caFile = env.CLOCHE_CA_CERT || here?.ca_cert;
  return {
    gatewayUrl,
    apiKey,
    caCert: caFile === undefined ? undefined : await readCa(caFile),
    edgeUrl: env.CLOCHE_EDGE_URL || here?.edge_url,
    baseDomain: env.CLOCHE_BASE_DOMAIN || here?.base_domain || "cloche.localhost",
  };
}

async function readCa(file: string): Promise<string> {
  try {
    return await readFile(file, "utf8");
  } catch (error) {
    throw new ClocheSdkError(`cannot read the CA certificate ${file}: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

/** A client for a connection; `close` ends its sockets, so that a program can exit at once. */
export function connect(
  connection: Connection,
  options: Omit<ClocheOptions, "gatewayUrl" | "apiKey" | "fetch" | "webSocket"> = {},
): Cloche & { close(): Promise<void> } {
  const fetch = nodeFetch(connection);
  const cloche = new Cloche({
    ...options,
    gatewayUrl: connection.gatewayUrl,
    apiKey: connection.apiKey,
    fetch,
    webSocket: fetch.webSocket,
  });
  return Object.assign(cloche, { close: () => fetch.close() });
}

/** A client of the service on this machine, or of the one that the environment names (see `findConnection`). */
export async function connectLocal(
  env: NodeJS.ProcessEnv = process.env,
): Promise<ReturnType<typeof connect>> {
  return connect(await findConnection(env));
}
