/** Where a service is and how it is reached from Node: options, else the environment, else the service on this machine. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ClocheSdkError } from "./index.ts";

/** How Node's connections are made. */
export interface NodeFetchOptions {
  /** PEM of the authority that signed the edge's certificate; trusted besides the public ones. Default: those alone. */
  caCert?: string | undefined;
  /**
   * Where sandbox domains are reached: `https://127.0.0.1:7443`. Connections to `*.<baseDomain>` go there, with the domain
   * as SNI and Host, so nothing needs to resolve. Default: where the domains say; names below `.localhost` are this machine.
   */
  edgeUrl?: string | undefined;
  /** Of all sandboxes; counts with `edgeUrl`. Default `cloche.localhost`. */
  baseDomain?: string | undefined;
}

/** How to reach a service. */
export interface Connection extends NodeFetchOptions {
  /** Where the gateway is. */
  gatewayUrl: string;
  /** Of a team. */
  apiKey: string;
  /** Each sandbox at its own domain, by TLS, also where a plain address on the loopback serves. Default false. */
  useDomains?: boolean;
}

/** Where a service on this machine is, as `cloche status --json` prints it. */
export interface LocalService {
  /** Where the gateway is. */
  gateway_url: string;
  /** Where to connect for any sandbox domain. */
  edge_url: string;
  /** Of all sandboxes; absent from services before it was added. */
  data_plane_url?: string;
  /** Where MCP clients connect over HTTP; absent where it is switched off. */
  mcp_url?: string;
  /** Sandboxes are `<id>.<base_domain>`. */
  base_domain: string;
  /** File with the CA's PEM. */
  ca_cert: string;
  /** Of the local team. */
  api_key: string;
  /** Of sandboxes that ask for none. */
  runtime: string;
  /** Of the service. */
  version: string;
  /** 0 or a dead process: it does not run. */
  pid: number;
  /** False once it was stopped. */
  ready: boolean;
}

/** The service of a CLOCHE_HOME; undefined where none has run, or where it is another user's. */
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
 * what they leave out comes from the service of CLOCHE_HOME (default `/var/lib/cloche`), unless another one is named.
 * Throws `configuration`, naming what is missing.
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

/** Only who calls a sandbox by its domain needs it, and is told then. */
function localCa(file: string | undefined): string | undefined {
  try {
    return file === undefined ? undefined : readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}

const unset = (message: string, cause?: unknown): ClocheSdkError =>
  new ClocheSdkError(message, { code: "configuration", cause });
