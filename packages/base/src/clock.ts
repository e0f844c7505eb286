import { timerMaxMs } from "./call-timeout.ts";

/** Time, passed in so that tests need no sleeping. */
export interface Clock {
  /** Wall clock, Unix milliseconds. */
  nowMs(): number;
  /** Never goes backwards; only differences have a meaning. */
  monotonicMs(): number;
  /** Resolves after `ms`; rejects with the signal's reason when aborted. Does not keep the process alive. At most 24 days. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const onAbort = (): void => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(
        () => {
          signal?.removeEventListener("abort", onAbort);
          resolve();
        },
        Math.min(ms, timerMaxMs),
      );
      signal?.addEventListener("abort", onAbort, { once: true });
    }),
};

/** RFC 3339 UTC with milliseconds, as every timestamp of the service prints. */
export const rfc3339 = (unixMs: number): string => new Date(unixMs).toISOString();
