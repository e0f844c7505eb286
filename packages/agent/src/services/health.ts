import { connectLoopback } from "../ports/loopback.ts";

const pauseMsMin = 3;
const pauseMsMax = 25;
/** The pause as a share of the time waited so far: a port is noticed late by at most a twentieth of its own delay. */
const pauseShare = 0.05;
const probeTimeoutMs = 2_000;

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
