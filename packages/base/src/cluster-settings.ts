/** Settings of a cluster's parts (docs/clusters.md). A single machine needs none of them. */
import { hostname } from "node:os";
import {
  absolutePath,
  matching,
  oneOf,
  type Parse,
  port,
  portText,
  setting,
  integer,
  zeroOr,
} from "./setting.ts";

const nodeIdPattern = /^[a-z0-9][a-z0-9-]{0,62}$/;
/** `[` and `]` around an IPv6 address. */
const addressPattern = /^(\[[0-9a-f:.]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?):\d{1,5}$/i;

/** The computer's name, as an id of the cluster. */
export const nodeIdOf = (name: string): string =>
  name
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+/g, "")
    .slice(0, 63) || "node";

const address: Parse<string> = (text) => {
  const portNumber = Number(text.slice(text.lastIndexOf(":") + 1));
  if (!addressPattern.test(text) || portNumber < 1 || portNumber > 65_535) throw new Error("no address");
  return text;
};

const addresses: Parse<string[]> = (text) => text.split(",").map((one) => address(one.trim()));

export const clusterSettings = {
  clusterSecretFile: setting(
    "CLOCHE_CLUSTER_SECRET_FILE",
    "cluster_secret_file",
    "",
    (text) => (text === "" ? "" : absolutePath(text)),
    "an absolute path of a file with at least 32 random bytes",
  ),
  clusterEdgeUrl: setting(
    "CLOCHE_CLUSTER_EDGE_URL",
    "cluster_edge_url",
    "",
    matching(/^(https:\/\/[^/?#\s]+)?$/),
    "https:// and host:port of the edges, or empty",
  ),
  clusterPort: setting("CLOCHE_CLUSTER_PORT", "cluster_port", 7_090, port, portText),
  clusterAddress: setting(
    "CLOCHE_CLUSTER_ADDRESS",
    "cluster_address",
    "0.0.0.0",
    matching(/^[0-9a-f.:]+$/),
    "an IP address",
  ),
  advertise: setting(
    "CLOCHE_ADVERTISE",
    "advertise",
    "",
    (text) => (text === "" ? "" : address(text)),
    "host:port at which gateways and edges reach this host, or empty for <the computer's name>:<cluster port>",
  ),
  clusterGateways: setting(
    "CLOCHE_CLUSTER_GATEWAYS",
    "cluster_gateways",
    [] as string[],
    addresses,
    "host:port of each gateway's cluster port, separated by commas",
  ),
  joinToken: setting(
    "CLOCHE_JOIN_TOKEN",
    "join_token",
    "",
    matching(/^(cloche-join[\w.-]+)?$/),
    "a token that `cloche join-token` printed, or empty once this part has joined",
  ),
  nodeId: setting(
    "CLOCHE_NODE_ID",
    "node_id",
    nodeIdOf(hostname()),
    matching(nodeIdPattern),
    "1 to 63 of a-z, 0-9 and -, not beginning with -",
  ),
  hostMemoryMb: setting(
    "CLOCHE_HOST_MEMORY_MB",
    "host_memory_mb",
    0,
    zeroOr(integer(1_024, 100_000_000)),
    "whole MiB from 1024 that the sandboxes of this host may have together, or 0 for its memory less an eighth",
  ),
  placement: setting(
    "CLOCHE_PLACEMENT",
    "placement",
    "spread",
    oneOf("packed", "spread"),
    "packed or spread",
  ),
} as const;
