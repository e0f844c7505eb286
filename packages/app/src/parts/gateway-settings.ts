import type { Config } from "@cloche/base";
import { type GatewayConfig, parseCorsOrigins } from "@cloche/gateway";

/** What the settings say of the gateway. `issuer`: of its tokens. `dataPlaneUrl`: the address of all sandboxes. */
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
