// What must come to an end whatever a machine does: it may end by itself for a while, then the machine is cut off.
import type { Machines } from "../machines/machines.ts";

/** Does `body`, which waits for the machine or for its turn. After `patienceMs` what waits for the machine fails (`cutOff`). */
export async function cutOffAfter<T>(
  machines: Machines,
  id: string,
  patienceMs: number,
  why: string,
  body: () => Promise<T>,
): Promise<T> {
  const done = new AbortController();
  const { clock, log } = machines.parts;
  void clock.sleep(patienceMs, done.signal).then(
    () => {
      log.warn({ sandbox_id: id, why }, "a machine is in the middle of something that does not end: cut off");
      return machines.cutOff(id, why);
    },
    () => undefined,
  );
  try {
    return await body();
  } finally {
    done.abort();
  }
}
