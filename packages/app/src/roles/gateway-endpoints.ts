/**
 * The endpoints for E2B's clients and for MCP over HTTP of a cluster's gateway (docs/clusters.md). Both are clients of the public contract:
 * of this gateway's API, and of the edges at CLOCHE_CLUSTER_EDGE_URL. Each is off unless its port is set. Both are plain HTTP, as the API
 * is.
 */
import { randomBytes } from "node:crypto";
import { type Config, type Log, systemClock } from "@cloche/base";
import type { Gateway } from "@cloche/gateway";
import { publicDataPlaneUrl, shown } from "../addresses.ts";
import type { ClusterPart } from "../cluster/cluster-part.ts";
import { sharedEdgeCertificate } from "../cluster/edge-certificate.ts";
import { ensureSharedE2bKey } from "../cluster/shared-api-key.ts";
import { makeE2b } from "../e2b.ts";
import { type McpNeeds, startMcp } from "../mcp-endpoint.ts";
import { portTaken } from "../parts/ports.ts";
import { keptMs, type Stops } from "../parts/stops.ts";
import type { RoleStatus } from "../status-file.ts";

export interface GatewayEndpointsNeeds {
  gateway: Gateway;
  cluster: ClusterPart;
  log: Log;
  stops: Stops;
}

const secretBytes = 32;

/** Starts those whose ports are set; the gateway must listen. Answers what the status tells of them. */
export async function startGatewayEndpoints(
  config: Config,
  needs: GatewayEndpointsNeeds,
): Promise<Pick<RoleStatus, "e2b" | "mcp_url">> {
  const { gateway, cluster, log, stops } = needs;
  const { e2bPort, mcpPort, gatewayHost, baseDomain } = config;
  if (e2bPort === 0 && mcpPort === 0) return {};
  const drainMs = config.drainSeconds * 1_000;
  // Public roots are trusted besides.
  const { authority: caCert } = await sharedEdgeCertificate(cluster.secrets, baseDomain, systemClock.nowMs());
  const client = { gateway, edgeUrl: config.clusterEdgeUrl || publicDataPlaneUrl(config), caCert };
  const e2b = e2bPort > 0 ? await startE2b(config, client, needs) : undefined;
  if (mcpPort > 0) {
    const close = await startMcp(config, client, log);
    stops.add("MCP endpoint", () => close(drainMs, keptMs(config)));
  }
  return {
    ...(e2b && { e2b }),
    ...(mcpPort > 0 && { mcp_url: `http://${shown(gatewayHost)}:${mcpPort}/mcp` }),
  };
}

async function startE2b(
  config: Config,
  client: McpNeeds,
  { gateway, cluster, log, stops }: GatewayEndpointsNeeds,
): Promise<RoleStatus["e2b"]> {
  const { e2bPort, gatewayHost: address, drainSeconds } = config;
  const text = await cluster.secrets.keep("e2b-secret", randomBytes(secretBytes).toString("hex"));
  const ownKey = await ensureSharedE2bKey(config.home, gateway, cluster.secrets);
  const secret = Buffer.from(text, "hex");
  const { endpoint, status } = makeE2b(config, { ...client, secret, ownKey, address }, log);
  await endpoint.listen(e2bPort, address).catch(portTaken("CLOCHE_E2B_PORT", e2bPort));
  stops.add("E2B endpoint", () => endpoint.close(drainSeconds * 1_000, keptMs(config)));
  return status;
}
