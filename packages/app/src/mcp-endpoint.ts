/** MCP over HTTP beside the gateway: a client of the public contract that passes on each caller's API key. */
import {
  boundedLog,
  boundHttp,
  type Config,
  heldAnswers,
  HttpDrain,
  type Log,
  PacedRequest,
  stopListening,
} from "@cloche/base";
import type { Gateway } from "@cloche/gateway";
import { Cloche } from "@cloche/sdk";
import { nodeFetch } from "@cloche/sdk/node";
import { gatewayUrl } from "./addresses.ts";
import { packageVersion } from "./parts/operator.ts";
import { portTaken } from "./parts/ports.ts";

type McpSettings = Pick<Config, "gatewayHost" | "gatewayPort" | "baseDomain" | "mcpPort" | "mcpHosts">;

export interface McpNeeds {
  /** Tells whose keys are valid. */
  gateway: Pick<Gateway, "teamOfKey">;
  /** Where this process reaches the edges. */
  edgeUrl: string;
  /** PEM of the authority that signed the edges' certificate. */
  caCert: string;
}

/** Closes the endpoint; requests under way get `drainMs`, and connections used less than `idleMs` ago one more answer. */
type CloseMcp = (drainMs: number, idleMs?: number) => Promise<void>;

export async function startMcp(
  config: McpSettings,
  { gateway, edgeUrl, caCert }: McpNeeds,
  log: Log,
): Promise<CloseMcp> {
  // Loaded only if switched on: the library of the protocol loads more slowly than most parts of the service.
  const [{ createMcpServer }, { openMcpEndpoint }] = await Promise.all([
    import("@cloche/mcp"),
    import("@cloche/mcp/http"),
  ]);
  const callersLog = boundedLog(log.child({ part: "mcp" }));
  const fetch = nodeFetch({ caCert, edgeUrl, baseDomain: config.baseDomain });
  const endpoint = await openMcpEndpoint({
    address: config.gatewayHost,
    port: config.mcpPort,
    hosts: config.mcpHosts,
    keys: {
      clientFor: (apiKey) =>
        new Cloche({ gatewayUrl: gatewayUrl(config), apiKey, fetch, webSocket: fetch.webSocket }),
      teamOf: (apiKey) => gateway.teamOfKey(apiKey),
    },
    serverFor: (cloche) => createMcpServer({ cloche, version: packageVersion() }),
    requestClass: PacedRequest,
    watchAnswer: (response, teamId) => heldAnswers.watch(response, teamId),
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
  }).catch(portTaken("CLOCHE_MCP_PORT", config.mcpPort));
  return async (drainMs, idleMs) => {
    await endpoint.close(drainMs, idleMs);
    await fetch.close();
  };
}
