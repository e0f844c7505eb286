import type { Clock } from "./clock.ts";

export interface Patience {
  clock: Clock;
  /** Side by side, of those that still have their time. */
  atOnce: number;
  /** After so long the next item's turn comes, though this one goes on. */
  patienceMs: number;
  /** No more are begun. */
  isOver?: () => boolean;
}

/**
 * Does `body` with every item, some at once, in their order: as eachLimited, but an item that takes long keeps no other waiting for
 * longer than the patience. Answers all that was begun, once each has ended or had its time. `body` handles its own errors.
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
