/** Finds a service from Node: by options, else the environment, else the service on this machine. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ClocheSdkError } from "./index.ts";

/** Options of Node's connections. */
export interface NodeFetchOptions {
  /** PEM of the authority that signed the edge's certificate; trusted besides the public ones. Default: only the public ones. */
  caCert?: string | undefined;
  /**
   * The address for sandbox domains: `https://127.0.0.1:7443`. Connections to `*.<baseDomain>` go there, with the domain as SNI and Host,
   * so the domains need not resolve. Default: the domains are resolved; names below `.localhost` are this machine.
   */
  edgeUrl?: string | undefined;
  /** Base domain of the sandboxes; used with `edgeUrl`. Default `cloche.localhost`. */
  baseDomain?: string | undefined;
}

/** The address and the credentials of a service. */
export interface Connection extends NodeFetchOptions {
  /** The gateway's URL. */
  gatewayUrl: string;
  /** The team's API key. */
  apiKey: string;
  /** Reach each sandbox at its own domain, by TLS, even if there is a plain address on the loopback. Default false. */
  useDomains?: boolean;
}

/** The service on this machine, as printed by `cloche status --json`. */
export interface LocalService {
  /** The gateway's URL. */
  gateway_url: string;
  /** The address to connect to for any sandbox domain. */
  edge_url: string;
  /** The one address of all sandboxes; absent in older services. */
  data_plane_url?: string;
  /** The address for MCP clients over HTTP; absent if switched off. */
  mcp_url?: string;
  /** Sandboxes are `<id>.<base_domain>`. */
  base_domain: string;
  /** File with the CA's PEM. */
  ca_cert: string;
  /** API key of the local team. */
  api_key: string;
  /** Default runtime of sandboxes. */
  runtime: string;
  /** Version of the service. */
  version: string;
  /** 0 or the pid of a dead process: the service does not run. */
  pid: number;
  /** False after the service was stopped. */
  ready: boolean;
}

/** The service of a CLOCHE_HOME; undefined if none has run, or if it belongs to another user. */
export function findLocalService(home: string): LocalService | undefined {
  const file = join(home, "run", "status.json");
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
  try {
    return JSON.parse(text) as LocalService;
  } catch (error) {
    throw unset(`${file} is no JSON; start the service again`, error);
  }
}

/**
 * Reads CLOCHE_URL (or CLOCHE_GATEWAY_URL), CLOCHE_API_KEY, CLOCHE_CA_CERT (a file), CLOCHE_EDGE_URL and CLOCHE_BASE_DOMAIN;
 * missing values come from the service of CLOCHE_HOME (default `/var/lib/cloche`), unless another service is named. Throws
 * `configuration`, naming the missing value.
 */
export function findConnection(
  env: NodeJS.ProcessEnv = process.env,
  named: Partial<Connection> = {},
): Connection {
  const home = env.CLOCHE_HOME || "/var/lib/cloche";
  const url = named.gatewayUrl || env.CLOCHE_URL || env.CLOCHE_GATEWAY_URL;
  const local = findLocalService(home);
  const here = url && local?.gateway_url !== url ? undefined : local;
  const gatewayUrl = url || here?.gateway_url;
  if (!gatewayUrl) {
    throw unset(
      `no Cloche service found: start one on this machine (\`npm start\`; none has run in ${home} that this user may see), or set CLOCHE_URL and CLOCHE_API_KEY`,
    );
  }
  const apiKey = named.apiKey || env.CLOCHE_API_KEY?.trim() || here?.api_key;
  if (!apiKey) throw unset(`no API key: set CLOCHE_API_KEY to an API key of ${gatewayUrl}`);
  const edgeUrl = named.edgeUrl || env.CLOCHE_EDGE_URL;
  return {
    gatewayUrl,
    apiKey,
    caCert: named.caCert ?? (env.CLOCHE_CA_CERT ? readCa(env.CLOCHE_CA_CERT) : localCa(here?.ca_cert)),
    edgeUrl: edgeUrl || here?.edge_url,
    baseDomain: named.baseDomain || env.CLOCHE_BASE_DOMAIN || here?.base_domain || "cloche.localhost",
    useDomains: named.useDomains ?? Boolean(env.CLOCHE_EDGE_URL),
  };
}

function readCa(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    throw unset(`CLOCHE_CA_CERT: cannot read the CA certificate ${file}: ${(error as Error).message}`, error);
  }
}

/** Reads the CA's file; undefined on failure. Only calls to a sandbox's domain need the CA, and they then report its absence. */
function localCa(file: string | undefined): string | undefined {
  try {
    return file === undefined ? undefined : readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}

const unset = (message: string, cause?: unknown): ClocheSdkError =>
  new ClocheSdkError(message, { code: "configuration", cause });
