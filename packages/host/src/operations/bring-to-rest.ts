// The host stops: operations under way come to their end for a while. Those that do not are cut off where their machine is to be
// suspended, and otherwise left to the next start, which finds them in the journal.
import type { Clock, SerialQueue } from "@cloche/base";
import { cutOff } from "./cut-off.ts";
import type { Parts } from "./parts.ts";

/** A suspension of a large machine takes this long; services that start may take longer, and start again next time. */
const PATIENCE_MS = 60_000;
/** What was cut off undoes what it had done. */
const CUT_PATIENCE_MS = 15_000;

/** Resolves when no operation runs, or when no more is waited for. `end`: machines that hang are to end. */
export async function bringToRest(
  parts: Parts<"machines" | "queue" | "drivers" | "clock" | "log">,
  { end }: { end: boolean },
): Promise<void> {
  const { queue, clock, log } = parts;
  if (await drains(queue, clock, PATIENCE_MS)) return;
  const stuck = queue.keys();
  log.warn({ sandbox_ids: stuck }, "operations do not end: no more is waited for");
  if (!end) return;
  await Promise.all(stuck.map((id) => cutOff(parts, id, "the service stops")));
  if (!(await drains(queue, clock, CUT_PATIENCE_MS)))
    log.error({ sandbox_ids: queue.keys() }, "operations go on though their machines were ended");
}

async function drains(queue: SerialQueue, clock: Clock, ms: number): Promise<boolean> {
  const drained = new AbortController();
  const inTime = queue.drain().then(() => drained.abort());
  await Promise.race([inTime, clock.sleep(ms, drained.signal).catch(() => undefined)]);
  return drained.signal.aborted;
}
