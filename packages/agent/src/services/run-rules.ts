/** What one run of a service goes by: its definition first, then its image's config, then the defaults. */
import { limits, type ServiceDefinition } from "@cloche/protocol";
import type { ImageConfig } from "../oci-images/manifest.ts";
import { signalOf } from "../processes/index.ts";
import type { SignalScope } from "../spawner/index.ts";

/** What an image says about the program's life. */
export type ImageRules = Pick<ImageConfig, "stopSignal" | "stopTimeoutSeconds" | "healthCheck">;

export interface RunRules {
  /** How long the service may take from its launch until it is healthy. */
  startTimeoutMs: number;
  /**
   * A signal that somebody chose goes to the program alone, as from Docker: programs such as PostgreSQL give their children other
   * meanings of it. The default goes to the whole tree, since a shell does not pass it on.
   */
  stop: { signal: number; scope: SignalScope };
  /** How long after the signal the whole tree is killed. */
  stopTimeoutMs: number;
}

const sigterm = 15;

export function runRules(
  definition: ServiceDefinition,
  image: ImageRules | undefined,
  defaults: { startTimeoutMs: number; stopTimeoutMs: number },
): RunRules {
  const { start_timeout_secs, stop_signal, stop_timeout_secs } = definition;
  const signal = signalOf(stop_signal ?? image?.stopSignal ?? "");
  const stopSeconds = stop_timeout_secs ?? image?.stopTimeoutSeconds ?? undefined;
  return {
    startTimeoutMs:
      start_timeout_secs === undefined
        ? Math.max(defaults.startTimeoutMs, unhealthyAfterMs(definition, image))
        : start_timeout_secs * 1_000,
    stop: signal === undefined ? { signal: sigterm, scope: "tree" } : { signal, scope: "program" },
    stopTimeoutMs:
      stopSeconds === undefined
        ? defaults.stopTimeoutMs
        : Math.min(stopSeconds, limits.serviceStopTimeoutSecondsMax) * 1_000,
  };
}

/** The check that counts: the image's, unless the definition has a port or wants none. */
export const checkOf = (
  { health_port, healthcheck }: ServiceDefinition,
  image: ImageRules | undefined,
): ImageRules["healthCheck"] =>
  health_port === undefined && healthcheck !== false ? (image?.healthCheck ?? null) : null;

/** When Docker would call a service unhealthy whose check never passes. */
function unhealthyAfterMs(definition: ServiceDefinition, image: ImageRules | undefined): number {
  const check = checkOf(definition, image);
  if (check === null) return 0;
  const afterMs = check.startPeriodMs + check.retries * check.intervalMs;
  return Math.min(afterMs, limits.serviceStartTimeoutSecondsMax * 1_000);
}
