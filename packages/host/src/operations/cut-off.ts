/**
 * Bounds operations that must end even when a machine hangs: after a time to end by themselves, the machine is cut off.
 */
import type { Parts } from "./parts.ts";

/** Runs `body`, which waits for the machine or its turn. After `patienceMs` the machine is cut off, and waits for it fail. */
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
 * Ends all waits for the machine's agent and kills its processes, so that operations under way with it fail. Leaves the
 * record as it is. Repeatable.
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
