/**
 * Whether a launched service is healthy: by its health port, by the check of its image, or as soon as it runs. A port counts only if a
 * process of the service's own tree listens there, since another server on it says nothing about the service.
 */
import { readdirSync } from "node:fs";
import type { ServiceDefinition } from "@cloche/protocol";
import type { HealthCheck } from "../oci-images/health-check.ts";
import { listens } from "../ports/listeners.ts";
import { type ServiceHealth, waitForPort } from "./health.ts";
import { ImageHealth } from "./image-health.ts";
import type { Launched } from "./launcher.ts";
import { checkOf } from "./run-rules.ts";

export function healthOf(
  definition: ServiceDefinition,
  launched: Launched,
  note: (text: string) => void,
): ServiceHealth {
  const { health_port: port } = definition;
  if (port !== undefined) return new PortHealth(port, launched);
  const { container } = launched;
  const check: HealthCheck | null = checkOf(definition, container?.image);
  return container === undefined || check === null ? asLaunched : new ImageHealth(check, container, note);
}

/** Healthy as soon as it is launched. */
const asLaunched: ServiceHealth = {
  comesUp: async () => true,
  watch: async () => undefined,
  lost: () => "",
  goal: "it ran",
  late: (within) => `it did not run ${within}`,
};

class PortHealth implements ServiceHealth {
  readonly goal: string;
  readonly #port: number;
  readonly #own: () => boolean;

  constructor(port: number, { process }: Launched) {
    this.goal = `port ${port} accepted connections`;
    this.#port = port;
    this.#own = () => listens(port, () => process.tree());
  }

  comesUp(signal: AbortSignal): Promise<boolean> {
    return waitForPort(this.#port, this.#own, signal);
  }

  async watch(): Promise<void> {}

  lost(): string {
    return this.#own() ? "" : `no process of it listens on port ${this.#port} any more`;
  }

  late(within: string): string {
    return listens(this.#port, everybody)
      ? `port ${this.#port} was not the service's own ${within}: another process listens there`
      : `port ${this.#port} did not accept connections ${within}`;
  }
}

const everybody = (): number[] => readdirSync("/proc").map(Number).filter(Number.isInteger);
