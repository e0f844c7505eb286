import type { Clock } from "./clock.ts";

export interface Regular {
  /** From the end of one look to the next. */
  everyMs: number;
  /** The first look is at once, or `everyMs` from now. */
  first: "now" | "later";
  clock: Pick<Clock, "sleep">;
  /** Ends it. */
  signal: AbortSignal;
  /** Hears of each look that failed before `signal` aborted; the next one comes all the same. */
  failed(error: unknown): void;
}

/** Looks again and again. Resolves when `signal` has aborted and the last look has ended; never throws. */
export async function regularly(regular: Regular, look: () => unknown): Promise<void> {
  const { everyMs, first, clock, signal, failed } = regular;
  const pause = () => clock.sleep(everyMs, signal).catch(() => undefined);
  if (first === "later") await pause();
  while (!signal.aborted) {
    try {
      await look();
    } catch (error) {
      if (!signal.aborted) failed(error);
    }
    await pause();
  }
}
