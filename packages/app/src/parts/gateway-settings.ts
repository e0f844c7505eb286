import type { Config } from "@cloche/base";
import { type GatewayConfig, parseCorsOrigins } from "@cloche/gateway";

/** The gateway's configuration from the settings. `issuer`: issuer of its tokens. `dataPlaneUrl`: the one address of all sandboxes. */
export const gatewayConfig = (config: Config, issuer: string, dataPlaneUrl: string): GatewayConfig => ({
  issuer,
  baseDomain: config.baseDomain,
  edgePort: config.edgePort,
  dataPlaneUrl,
  tokenLifetimeSeconds: config.tokenLifetimeSeconds,
  corsOrigins: parseCorsOrigins(config.corsOrigins),
  limits: {
    sandboxes: config.maxSandboxes,
    concurrentCalls: config.maxConcurrentCalls,
    callsPerSecond: config.maxCallsPerSecond,
  },
});
