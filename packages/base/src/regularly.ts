import type { Clock } from "./clock.ts";

export interface Regular {
  /** Time from the end of one look to the next. */
  everyMs: number;
  /** The first look is at once, or `everyMs` from now. */
  first: "now" | "later";
  clock: Pick<Clock, "sleep">;
  /** Ends the looks. */
  signal: AbortSignal;
  /** Called for each look that failed before `signal` aborted; the next look follows anyway. */
  failed(error: unknown): void;
}

/** Calls `look` again and again. Resolves when `signal` has aborted and the last look has ended; never throws. */
export async function regularly(regular: Regular, task: () => unknown): Promise<void> {
  const { everyMs, first, clock, signal, failed } = regular;
  const pause = () => clock.sleep(everyMs, signal).catch(() => undefined);
  if (first === "later") await pause();
  while (!signal.aborted) {
    try {
      await task();
    } catch (error) {
      if (!signal.aborted) failed(error);
    }
    await pause();
  }
}
