import type { Clock } from "./clock.ts";

export interface Patience {
  clock: Clock;
  /** How many items run at once, not counting those that have used up their patience. */
  atOnce: number;
  /** After this time the next item begins, while the slow one goes on. */
  patienceMs: number;
  /** True: no further item is begun. */
  isOver?: () => boolean;
}

/**
 * Runs `body` for every item in order, some at once: as eachLimited, but a slow item makes no other wait for longer
 * than the patience. Resolves when each item has ended or used up its patience, with the promises of all begun items.
 * `body` handles its own errors.
 */
export async function eachPatiently<T>(
  items: readonly T[],
  body: (item: T) => Promise<void>,
  { clock, atOnce, patienceMs, isOver = () => false }: Patience,
): Promise<Promise<void>[]> {
  const begun: Promise<void>[] = [];
  const rest = [...items];
  const worker = async (): Promise<void> => {
    for (let item = rest.shift(); item !== undefined && !isOver(); item = rest.shift()) {
      const ended = new AbortController();
      const going = body(item).finally(() => ended.abort());
      begun.push(going);
      await Promise.race([going, clock.sleep(patienceMs, ended.signal).catch(() => undefined)]);
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker));
  return begun;
}
