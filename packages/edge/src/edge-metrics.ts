/** The edge's metrics: requests by route, their durations, refusals by code, open requests and connections. */
import type { Metrics } from "@cloche/base";
import { dataPlaneRouteName } from "@cloche/protocol";
import type { Exchange } from "./exchange/exchange.ts";

/** Records an exchange that is over. */
export type MeasureExchange = (exchange: Exchange, tookMs: number) => void;

export function edgeMetrics(
  metrics: Metrics,
  now: () => { requests: number; connections: number },
): MeasureExchange {
  const latency = metrics.histogram(
    "cloche_edge_request_seconds",
    "Data plane requests by route, from their head to the end of the answer; port: a sandbox's own server.",
  );
  const requests = metrics.counter(
    "cloche_edge_requests_total",
    "Data plane requests by route and HTTP status.",
  );
  const errors = metrics.counter(
    "cloche_edge_errors_total",
    "Requests that the edge itself refused or cut, by code.",
  );
  metrics.gauge("cloche_edge_requests_open", "Requests under way.", () => [{ value: now().requests }]);
  metrics.gauge("cloche_edge_connections", "Clients' connections.", () => [{ value: now().connections }]);
  return (exchange, tookMs) => {
    const route = routeOf(exchange);
    latency.observe({ route }, tookMs / 1_000);
    requests.add({ route, status: statusOf(exchange) });
    if (exchange.failure !== undefined) errors.add({ code: exchange.failure.code });
  };
}

function routeOf(exchange: Exchange): string {
  if (exchange.forPort) return "port";
  return dataPlaneRouteName(exchange.request.method ?? "", exchange.path) ?? "none";
}

/** A sandbox's own server may answer with any status: these count as 2xx, 4xx and so on. */
function statusOf({ gone, forPort, response }: Exchange): string {
  if (gone) return "gone";
  if (!response.headersSent) return "none";
  return forPort ? `${Math.floor(response.statusCode / 100)}xx` : String(response.statusCode);
}
