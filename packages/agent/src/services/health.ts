import { connect } from "node:net";

const pauseMsMin = 3;
const pauseMsMax = 25;
/** A pause of this share of the time waited so far: a port is seen late by no more than a twentieth of its own delay. */
const pauseShare = 0.05;
const probeTimeoutMs = 2_000;

/**
 * Waits until 127.0.0.1:`port` accepts a connection. Answers false when `signal` aborts first. Looks often at the
 * beginning and every 25 ms later, so that a chain of services loses little at each link and a slow one costs little.
 */
export async function waitForPort(port: number, signal: AbortSignal): Promise<boolean> {
  const beganMs = performance.now();
  while (!signal.aborted) {
    if (await accepts(port, signal)) return true;
    const waitedMs = performance.now() - beganMs;
    await pause(Math.min(pauseMsMax, Math.max(pauseMsMin, waitedMs * pauseShare)), signal);
  }
  return false;
}

function accepts(port: number, signal: AbortSignal): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const socket = connect({ host: "127.0.0.1", port });
  const finish = (accepted: boolean): void => {
    signal.removeEventListener("abort", onAbort);
    socket.destroy();
    resolve(accepted);
  };
  const onAbort = (): void => finish(false);
  signal.addEventListener("abort", onAbort, { once: true });
  socket.setTimeout(probeTimeoutMs, () => finish(false));
  socket.once("connect", () => finish(true)).once("error", () => finish(false));
  return promise;
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
