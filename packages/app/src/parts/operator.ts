/** Opens the operator's port if the settings name one, and adds metrics of the process. */
import { readFileSync } from "node:fs";
import { type Config, Metrics } from "@cloche/base";
import { openOperatorEndpoint } from "../operator-endpoint.ts";
import { processMetrics } from "../process-metrics.ts";
import { portTaken } from "./ports.ts";
import type { Stops } from "./stops.ts";

export function newMetrics(): Metrics {
  const metrics = new Metrics();
  processMetrics(metrics, packageVersion());
  return metrics;
}

/** `ready` throws a ClocheError that names the part that is not ready. */
export async function startOperatorPort(
  { metricsPort }: Pick<Config, "metricsPort">,
  metrics: Metrics,
  stops: Stops,
  ready: () => Promise<void>,
): Promise<void> {
  if (metricsPort === 0) return;
  const operator = await openOperatorEndpoint(metricsPort, metrics, ready).catch(
    portTaken("CLOCHE_METRICS_PORT", metricsPort),
  );
  stops.add("operator endpoint", () => operator.close());
}

/** The version of this release. */
export function packageVersion(): string {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
