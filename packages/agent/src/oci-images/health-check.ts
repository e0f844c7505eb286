/** The health check of an image's config (`HEALTHCHECK` of a Dockerfile), with Docker's defaults. */
export interface HealthCheck {
  /** The program of the check and its arguments; it runs in the container. Exit code 0: healthy. */
  argv: string[];
  intervalMs: number;
  timeoutMs: number;
  /** How long a service may need until it can pass. */
  startPeriodMs: number;
  /** Time between two checks until the first one passes. */
  startIntervalMs: number;
  /** So many failures in a row make a service unhealthy. */
  retries: number;
}

const nsPerMs = 1_000_000;
const secondMs = 1_000;
const intervalMsMin = secondMs;
const durationMsMax = 24 * 3_600 * secondMs;
const retriesMax = 1_000;

/** Undefined: the image has no check, none that can be run, or says `NONE`. `shell` is the image's, for `CMD-SHELL`. */
export function readHealthCheck(value: unknown, shell: readonly string[]): HealthCheck | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const fields = value as Record<string, unknown>;
  const argv = commandOf(fields["Test"], shell);
  if (argv === undefined) return undefined;
  const retries = fields["Retries"];
  return {
    argv,
    intervalMs: Math.max(intervalMsMin, duration(fields["Interval"], 30 * secondMs)),
    timeoutMs: duration(fields["Timeout"], 30 * secondMs),
    startPeriodMs: duration(fields["StartPeriod"], 0),
    startIntervalMs: Math.max(intervalMsMin, duration(fields["StartInterval"], 5 * secondMs)),
    retries:
      typeof retries === "number" && Number.isInteger(retries) && retries > 0
        ? Math.min(retries, retriesMax)
        : 3,
  };
}

function commandOf(test: unknown, shell: readonly string[]): string[] | undefined {
  if (!Array.isArray(test)) return undefined;
  const parts: unknown[] = test;
  if (!parts.every((part): part is string => typeof part === "string" && !part.includes("\0")))
    return undefined;
  const [kind, ...rest] = parts;
  if (kind === "CMD" && rest.length > 0) return rest;
  if (kind === "CMD-SHELL" && rest[0]) return [...(shell.length > 0 ? shell : ["/bin/sh", "-c"]), rest[0]];
  return undefined;
}

/** From nanoseconds; 0 or nonsense means the default. */
function duration(value: unknown, defaultMs: number): number {
  if (typeof value !== "number" || !(value > 0)) return defaultMs;
  return Math.min(Math.ceil(value / nsPerMs), durationMsMax);
}
