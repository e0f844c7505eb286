const stepMs = 1_000;

/**
 * Calls `fire` after `durationMs` of running time; the answer stops the countdown. After a suspension the monotonic clock is far ahead:
 * such a jump counts as one step, so that a command does not time out because its sandbox was suspended.
 */
export function countdown(durationMs: number, fire: () => void): () => void {
  let leftMs = durationMs;
  let timer: NodeJS.Timeout;
  const next = (): void => {
    const waitMs = Math.min(leftMs, stepMs);
    const startedMs = performance.now();
    timer = setTimeout(() => {
      leftMs -= Math.min(Math.max(performance.now() - startedMs, waitMs), 2 * stepMs);
      if (leftMs <= 0) fire();
      else next();
    }, waitMs);
  };
  next();
  return () => clearTimeout(timer);
}
