/** Starts the edge from the settings, for `up` and for the role `edge`. */
import { type Config, type Log, type Metrics, systemClock } from "@cloche/base";
import { createEdge, type Edge, type EdgeOptions } from "@cloche/edge";
import { parseCorsOrigins } from "@cloche/gateway";
import { plainEdge } from "../addresses.ts";
import { portTaken } from "./ports.ts";

type Given = Pick<
  EdgeOptions,
  "tls" | "routes" | "hostDataPlane" | "keepAwake" | "links" | "neighbour" | "neighbourPlain"
>;

/** Resolves when the edge listens and knows its routes. */
export async function startEdge(config: Config, given: Given, log: Log, metrics: Metrics): Promise<Edge> {
  const plain = plainEdge(config);
  const edge: Edge = createEdge({
    ...given,
    baseDomain: config.baseDomain,
    port: config.edgePort,
    address: config.edgeHost,
    ...(plain && { plain }),
    limits: { requestsPerSecond: config.maxRequestsPerSecond },
    corsOrigins: parseCorsOrigins(config.corsOrigins),
    clock: systemClock,
    log,
    metrics,
  });
  await edge.start().catch((error: NodeJS.ErrnoException & { port?: number }) => {
    if (error.port === given.neighbourPlain?.port) portTaken("CLOCHE_E2B_PORT", config.e2bPort)(error);
    else if (error.port === plain?.port) portTaken("CLOCHE_EDGE_HTTP_PORT", config.edgeHttpPort)(error);
    else portTaken("CLOCHE_EDGE_PORT", config.edgePort)(error);
  });
  return edge;
}
