/** MCP over HTTP beside the gateway: a client of the public contract that passes on each caller's API key. */
import type { Config, Log } from "@cloche/base";
import { Cloche } from "@cloche/sdk";
import { nodeFetch } from "@cloche/sdk/node";
import type { ServiceStatus } from "./status-file.ts";

type McpSettings = Pick<Config, "gatewayHost" | "mcpPort" | "mcpHosts">;

/** Closes the endpoint; requests under way get `drainMs`. */
export type CloseMcp = (drainMs: number) => Promise<void>;

/** `ca`: the PEM of the authority that signed the edge's certificate. */
export async function startMcp(
  config: McpSettings,
  status: ServiceStatus,
  ca: string,
  log: Log,
): Promise<CloseMcp> {
  // Loaded only if switched on: the library of the protocol loads more slowly than most parts of the service.
  const [{ createMcpServer }, { openMcpEndpoint }] = await Promise.all([
    import("@cloche/mcp"),
    import("@cloche/mcp/http"),
  ]);
  const fetch = nodeFetch({ caCert: ca, edgeUrl: status.edge_url, baseDomain: status.base_domain });
  const endpoint = await openMcpEndpoint({
    address: config.gatewayHost,
    port: config.mcpPort,
    hosts: config.mcpHosts,
    clientFor: (apiKey) =>
      new Cloche({ gatewayUrl: status.gateway_url, apiKey, fetch, webSocket: fetch.webSocket }),
    serverFor: (cloche) => createMcpServer({ cloche, version: status.version }),
    onError: (error) => log.warn({ err: error }, "an MCP request failed"),
  });
  return async (drainMs) => {
    await endpoint.close(drainMs);
    await fetch.close();
  };
}
