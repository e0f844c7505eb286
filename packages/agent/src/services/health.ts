import { connectLoopback } from "../ports/loopback.ts";

const pauseMsMin = 3;
const pauseMsMax = 25;
/** A pause of this share of the time waited so far: a port is seen late by no more than a twentieth of its own delay. */
const pauseShare = 0.05;
const probeTimeoutMs = 2_000;

/**
 * Asked until a service is up, and never after. Waits until `port` of the loopback accepts a connection and it is `own`: somebody else's server there says nothing about the
 * service. Answers false when `signal` aborts first. Looks often at the beginning and every 25 ms later, so that a chain of
 * services loses little at each link and a slow one costs little.
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
