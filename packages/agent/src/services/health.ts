import { connectLoopback } from "../ports/loopback.ts";

const pauseMsMin = 3;
const pauseMsMax = 25;
/** The pause as a share of the time waited so far: a port is noticed late by at most a twentieth of its own delay. */
const pauseShare = 0.05;
const probeTimeoutMs = 2_000;

/** How it is judged whether a service is healthy: by its port, by its image's check, or not at all (service-health.ts chooses). */
export interface ServiceHealth {
  /** Resolves true once the service is healthy, false if `signal` aborts before. */
  comesUp(signal: AbortSignal): Promise<boolean>;
  /** Watches a service that came up, until `signal` aborts. */
  watch(signal: AbortSignal): Promise<void>;
  /** Why a service that came up is not healthy at present; empty while it is. */
  lost(): string;
  /** Ends the sentence "exited with code 1 before …". */
  readonly goal: string;
  /** Why it did not come up; `within` is the time that it had. */
  late(within: string): string;
}

/**
 * Waits until `port` of the loopback accepts a connection and its listener is the service's `own`, since another server on the port says
 * nothing about the service. Used only until the service is up. Answers false if `signal` aborts first. Checks often at the beginning and
 * every 25 ms later, so that a chain of services loses little time at each link and a slow service costs little.
 */
export async function waitForPort(port: number, own: () => boolean, signal: AbortSignal): Promise<boolean> {
  const beganMs = performance.now();
  while (!signal.aborted) {
    if ((await accepts(port, signal)) && own()) return true;
    const waitedMs = performance.now() - beganMs;
    await pause(Math.min(pauseMsMax, Math.max(pauseMsMin, waitedMs * pauseShare)), signal);
  }
  return false;
}

export async function accepts(port: number, signal: AbortSignal): Promise<boolean> {
  try {
    const socket = await connectLoopback(
      port,
      AbortSignal.any([signal, AbortSignal.timeout(probeTimeoutMs)]),
    );
    socket.on("error", () => undefined).destroy();
    return true;
  } catch {
    return false;
  }
}

/** Resolves after `delayMs`, or at once when `signal` aborts. */
export function pause(delayMs: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  const { promise, resolve } = Promise.withResolvers<void>();
  const finish = (): void => {
    clearTimeout(timer);
    signal.removeEventListener("abort", finish);
    resolve();
  };
  const timer = setTimeout(finish, delayMs);
  signal.addEventListener("abort", finish, { once: true });
  return promise;
}
