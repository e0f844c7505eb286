/** The gateway's metrics: sandboxes by state, durations of operations and calls, refusals by code. */
import type { Counter, Histogram, Metrics } from "@cloche/base";
import type { Fleet } from "./hosts/fleet.ts";
import { shareOf } from "./hosts/placement.ts";
import { type SandboxState, sandboxStates } from "@cloche/protocol";

export interface GatewayMetrics {
  /** Labels: operation (create, fork, suspend, resume, delete) and result (ok, failed). */
  operations: Histogram;
  /** Labels: method and status. */
  calls: Histogram;
  /** Label: code. */
  errors: Counter;
  placementWaits: Counter;
}

export function gatewayMetrics(
  metrics: Metrics,
  countByState: () => ReadonlyMap<SandboxState, number>,
  fleet?: Pick<Fleet, "rows">,
  orphans: () => number = () => 0,
): GatewayMetrics {
  metrics.gauge("cloche_sandboxes", "Sandboxes by state.", async () => {
    const counts = countByState();
    return sandboxStates.map((state) => ({ labels: { state }, value: counts.get(state) ?? 0 }));
  });
  metrics.gauge(
    "cloche_orphan_machines",
    "Machines that the database does not know; kept until an operator adopts or deletes them (cloche orphans).",
    async () => [{ labels: {}, value: orphans() }],
  );
  metrics.gauge(
    "cloche_host_reserved_share",
    "Memory that sandboxes have reserved of a host, as a share of its capacity. None in one process.",
    async () =>
      [...(fleet?.rows().values() ?? [])]
        .filter(({ isLost }) => !isLost)
        .map((row) => ({
          labels: { host: row.id, cpu_class: row.cpuClass, state: row.state },
          value: shareOf(row),
        })),
  );
  return {
    placementWaits: metrics.counter(
      "cloche_placement_waits_total",
      "New machines that no host had room for: their callers were answered 503.",
    ),
    operations: metrics.histogram(
      "cloche_operation_seconds",
      "From the request of an operation to its end, as the owner of the sandbox sees it.",
    ),
    calls: metrics.histogram(
      "cloche_gateway_call_seconds",
      "Calls of the gateway by method and HTTP status.",
    ),
    errors: metrics.counter(
      "cloche_gateway_errors_total",
      "Calls of the gateway that were refused or failed, by code.",
    ),
  };
}
