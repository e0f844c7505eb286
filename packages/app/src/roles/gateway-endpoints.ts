/**
 * The endpoints for E2B's clients and for MCP over HTTP of a cluster's gateway (docs/clusters.md). Both are clients of the public contract:
 * of this gateway's API, and of the edges at CLOCHE_CLUSTER_EDGE_URL. Each is off unless its port is set. Both are plain HTTP, as the API
 * is.
 */
import { randomBytes } from "node:crypto";
import { type Config, type Log, systemClock } from "@cloche/base";
import { createE2b } from "@cloche/e2b";
import type { Gateway } from "@cloche/gateway";
import { gatewayUrl, publicDataPlaneUrl, shown } from "../addresses.ts";
import type { ClusterPart } from "../cluster/cluster-part.ts";
import { sharedEdgeCertificate } from "../cluster/edge-certificate.ts";
import { ensureSharedE2bKey } from "../cluster/shared-api-key.ts";
import { startMcp } from "../mcp-endpoint.ts";
import { packageVersion } from "../parts/operator.ts";
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
  const { e2bPort, mcpPort, gatewayHost } = config;
  const e2b = e2bPort > 0 ? await startE2b(config, needs) : undefined;
  if (mcpPort > 0) await startMcpOf(config, needs);
  return {
    ...(e2b && { e2b }),
    ...(mcpPort > 0 && { mcp_url: `http://${shown(gatewayHost)}:${mcpPort}/mcp` }),
  };
}

async function startE2b(
  config: Config,
  { gateway, cluster, log, stops }: GatewayEndpointsNeeds,
): Promise<NonNullable<RoleStatus["e2b"]>> {
  const { secrets } = cluster;
  const { e2bPort, gatewayHost, drainSeconds } = config;
  const secret = await secrets.keep("e2b-secret", randomBytes(secretBytes).toString("hex"));
  const ownKey = await ensureSharedE2bKey(config.home, gateway, secrets);
  const endpoint = createE2b({
    gatewayUrl: gatewayUrl(config),
    edgeUrl: edgesUrl(config),
    caCert: await trusted(config, cluster),
    baseDomain: config.baseDomain,
    edgePort: config.edgePort,
    secret: Buffer.from(secret, "hex"),
    ownKey,
    teamOf: (apiKey) => gateway.teamOfKey(apiKey),
    log: log.child({ part: "e2b" }),
  });
  await endpoint.listen(e2bPort, gatewayHost).catch(portTaken("CLOCHE_E2B_PORT", e2bPort));
  stops.add("E2B endpoint", () => endpoint.close(drainSeconds * 1_000, keptMs(config)));
  const url = `http://${shown(gatewayHost)}:${e2bPort}`;
  return { api_url: url, sandbox_url: url, api_key: ownKey };
}

async function startMcpOf(
  config: Config,
  { gateway, cluster, log, stops }: GatewayEndpointsNeeds,
): Promise<void> {
  const places = {
    gateway_url: gatewayUrl(config),
    edge_url: edgesUrl(config),
    base_domain: config.baseDomain,
    version: packageVersion(),
  };
  const ca = await trusted(config, cluster);
  const close = await startMcp(config, places, gateway, ca, log.child({ part: "mcp" })).catch(
    portTaken("CLOCHE_MCP_PORT", config.mcpPort),
  );
  stops.add("MCP endpoint", () => close(config.drainSeconds * 1_000, keptMs(config)));
}

/** Where this process reaches the edges. */
const edgesUrl = (config: Config): string => config.clusterEdgeUrl || publicDataPlaneUrl(config);

/** The authority of the edges' shared certificate; public roots are trusted besides. */
const trusted = async (config: Config, { secrets }: ClusterPart): Promise<string> =>
  (await sharedEdgeCertificate(secrets, config.baseDomain, systemClock.nowMs())).authority;
