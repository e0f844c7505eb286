// What must come to an end whatever a machine does: it may end by itself for a while, then the machine is cut off.
import type { Parts } from "./parts.ts";

/** Does `body`, which waits for the machine or for its turn. After `patienceMs` what waits for the machine fails (`cutOff`). */
export async function cutOffAfter<T>(
  parts: Parts<"machines" | "drivers" | "clock" | "log">,
  id: string,
  patienceMs: number,
  why: string,
  body: () => Promise<T>,
): Promise<T> {
  const done = new AbortController();
  const { clock, log } = parts;
  void clock.sleep(patienceMs, done.signal).then(
    () => {
      log.warn({ sandbox_id: id, why }, "a machine is in the middle of something that does not end: cut off");
      return cutOff(parts, id, why);
    },
    () => undefined,
  );
  try {
    return await body();
  } finally {
    done.abort();
  }
}

/**
 * Nobody waits for its agent any more, and its processes end: what is under way with it fails. For what must come to an end
 * whatever the machine does; its record stays as it is. Repeatable.
 */
export async function cutOff(
  { machines, drivers, log }: Parts<"machines" | "drivers" | "log">,
  id: string,
  why: string,
): Promise<void> {
  const record = machines.find(id);
  if (record === undefined) return;
  machines.cut(id, why);
  await drivers
    .of(record)
    .endNow(machines.files(record))
    .catch((error: unknown) => log.warn({ err: error, sandbox_id: id }, "could not be ended"));
}
