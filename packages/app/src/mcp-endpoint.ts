/** MCP over HTTP beside the gateway: a client of the public contract that passes on each caller's API key. */
import {
  boundedLog,
  boundHttp,
  type Config,
  HttpDrain,
  type Log,
  PacedRequest,
  stopListening,
} from "@cloche/base";
import type { Gateway } from "@cloche/gateway";
import { Cloche } from "@cloche/sdk";
import { nodeFetch } from "@cloche/sdk/node";
import type { ServiceStatus } from "./status-file.ts";

type McpSettings = Pick<Config, "gatewayHost" | "mcpPort" | "mcpHosts">;

/** What the endpoint needs to know of gateway and edges. */
type McpPlaces = Pick<ServiceStatus, "gateway_url" | "edge_url" | "base_domain" | "version">;

/** Closes the endpoint; requests under way get `drainMs`, and connections used less than `idleMs` ago one more answer. */
export type CloseMcp = (drainMs: number, idleMs?: number) => Promise<void>;

/** `ca`: the PEM of the authority that signed the edge's certificate. `gateway`: tells whose keys are valid. */
export async function startMcp(
  config: McpSettings,
  places: McpPlaces,
  gateway: Pick<Gateway, "teamOfKey">,
  ca: string,
  log: Log,
): Promise<CloseMcp> {
  // Loaded only if switched on: the library of the protocol loads more slowly than most parts of the service.
  const [{ createMcpServer }, { openMcpEndpoint }] = await Promise.all([
    import("@cloche/mcp"),
    import("@cloche/mcp/http"),
  ]);
  const callersLog = boundedLog(log);
  const fetch = nodeFetch({ caCert: ca, edgeUrl: places.edge_url, baseDomain: places.base_domain });
  const endpoint = await openMcpEndpoint({
    address: config.gatewayHost,
    port: config.mcpPort,
    hosts: config.mcpHosts,
    keys: {
      clientFor: (apiKey) =>
        new Cloche({ gatewayUrl: places.gateway_url, apiKey, fetch, webSocket: fetch.webSocket }),
      teamOf: (apiKey) => gateway.teamOfKey(apiKey),
    },
    serverFor: (cloche) => createMcpServer({ cloche, version: places.version }),
    requestClass: PacedRequest,
    drainOf(server) {
      boundHttp(server, "mcp");
      const drain = new HttpDrain(server);
      return {
        begin: () => drain.begin(),
        stopListening: () => stopListening(server),
        quiet: (idleMs) => drain.quiet(idleMs),
      };
    },
    onError: (error) => callersLog.warn({ err: error }, "an MCP request failed"),
  });
  return async (drainMs, idleMs) => {
    await endpoint.close(drainMs, idleMs);
    await fetch.close();
  };
}
