/**
 * Stop of the host: waits for operations under way. An operation that does not end in time is cut off if the machines are to be
 * suspended; otherwise the next start finds it in the journal and finishes it.
 */
import type { Clock, SerialQueue } from "@cloche/base";
import { cutOff } from "./cut-off.ts";
import type { Parts } from "./parts.ts";

/** Suspending a large machine takes this long. Starting services may take longer; the next start repeats it. */
const patienceLimitMs = 60_000;
/** Time for an operation that was cut off to undo its steps. */
const cutPatienceMs = 15_000;

/** Resolves when no operation runs, or when the time to wait is over. `end`: end the machines whose operations hang. */
export async function bringToRest(
  parts: Parts<"machines" | "queue" | "drivers" | "clock" | "log">,
  { end }: { end: boolean },
): Promise<void> {
  const { queue, clock, log } = parts;
  if (await drains(queue, clock, patienceLimitMs)) return;
  const stuck = queue.keys();
  log.warn({ sandbox_ids: stuck }, "operations do not end: no more is waited for");
  if (!end) return;
  await Promise.all(stuck.map((id) => cutOff(parts, id, "the service stops")));
  if (!(await drains(queue, clock, cutPatienceMs)))
    log.error({ sandbox_ids: queue.keys() }, "operations go on though their machines were ended");
}

async function drains(queue: SerialQueue, clock: Clock, ms: number): Promise<boolean> {
  const drained = new AbortController();
  const inTime = queue.drain().then(() => drained.abort());
  await Promise.race([inTime, clock.sleep(ms, drained.signal).catch(() => undefined)]);
  return drained.signal.aborted;
}
