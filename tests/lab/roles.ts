// How each role of a lab is started: its settings, and how to tell that it serves. Pure, but for the questions it asks over the network.
import { tagOf } from "../fixtures/inventory.ts";

/** What the programs of a lab need to reach each other. */
export interface LabPlaces {
  readonly cache: string;
  readonly databaseUrl: string;
  /** `s3://…` with its endpoint. */
  readonly blobUrl: string;
  readonly secretFile: string;
  /** Where gateways reach an edge. */
  readonly edgeUrl: string;
  /** host:port of each gateway's cluster port. */
  readonly clusterGateways: readonly string[];
  readonly joinTokens: Readonly<Record<"host" | "edge", string>>;
}

export interface RolePlace {
  /** "h1", "g2", … */
  readonly node: string;
  readonly home: string;
  readonly address: string;
}

export type Role = "gateway" | "host" | "edge";
const ROLE_OF: Readonly<Record<string, Role>> = { g: "gateway", h: "host", e: "edge" };

export const CLUSTER_PORT = 7090;
export const GATEWAY_PORT = 7080;
export const EDGE_PORT = 7443;
export const E2B_PORT = 7082;
export const MCP_PORT = 7083;
/** Keys of the lab's S3 server, which listens on the lab's network alone. */
export const S3_KEYS = { access: "cloche-lab", secret: "cloche-lab-secret" } as const;
/** Three hosts share one computer: each offers little, and keeps nothing ready that nobody asked for. */
const HOST_SETTINGS = {
  CLOCHE_HOST_MEMORY_MB: "6144",
  CLOCHE_POOL_GB: "8",
  CLOCHE_WARM_POOL: "0",
  CLOCHE_WARM_POOL_MAX: "0",
  CLOCHE_RUNTIME: "gvisor",
} as const;

export function roleOf(node: string): Role {
  const role = ROLE_OF[node.slice(0, 1)];
  if (role === undefined) throw new Error(`${node} is no role of the lab`);
  return role;
}

function gatewaySettings(places: LabPlaces, place: RolePlace): Record<string, string> {
  return {
    ...common(places, place),
    CLOCHE_DATABASE_URL: places.databaseUrl,
    CLOCHE_CLUSTER_SECRET_FILE: places.secretFile,
    CLOCHE_GATEWAY_HOST: place.address,
    CLOCHE_GATEWAY_PORT: String(GATEWAY_PORT),
    CLOCHE_E2B_PORT: String(E2B_PORT),
    CLOCHE_MCP_PORT: String(MCP_PORT),
    CLOCHE_MCP_HOSTS: place.address,
    CLOCHE_CLUSTER_EDGE_URL: places.edgeUrl,
    ...storage(places),
  };
}

export function roleSettings(places: LabPlaces, place: RolePlace): Record<string, string> {
  const role = roleOf(place.node);
  if (role === "gateway") return gatewaySettings(places, place);
  const joins = {
    ...common(places, place),
    CLOCHE_CLUSTER_GATEWAYS: places.clusterGateways.join(","),
    CLOCHE_JOIN_TOKEN: places.joinTokens[role],
  };
  if (role === "edge")
    return { ...joins, CLOCHE_EDGE_HOST: place.address, CLOCHE_EDGE_PORT: String(EDGE_PORT) };
  return { ...joins, ...storage(places), ...HOST_SETTINGS, CLOCHE_SUBNET: subnetOf(place.home) };
}

const common = ({ cache }: LabPlaces, { home, node, address }: RolePlace) => ({
  CLOCHE_HOME: home,
  CLOCHE_CACHE: cache,
  CLOCHE_NODE_ID: node,
  CLOCHE_CLUSTER_ADDRESS: address,
  CLOCHE_CLUSTER_PORT: String(CLUSTER_PORT),
  CLOCHE_ADVERTISE: `${address}:${CLUSTER_PORT}`,
  CLOCHE_EDGE_HTTP_PORT: "0",
});

const storage = ({ blobUrl }: LabPlaces) => ({
  CLOCHE_BLOB_URL: blobUrl,
  AWS_ACCESS_KEY_ID: S3_KEYS.access,
  AWS_SECRET_ACCESS_KEY: S3_KEYS.secret,
});

/** Hosts have networks of their own, so that theirs could be the same: different ones tell packets apart. */
const subnetOf = (home: string): string => `10.${200 + (Number.parseInt(tagOf(home), 36) % 55)}.0.0/16`;
