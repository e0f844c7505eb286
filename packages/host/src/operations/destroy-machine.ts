// Destroy: the machine's processes, its disk and its record go, in this order.
import { rm } from "node:fs/promises";
import type { Parts } from "./parts.ts";

/** Repeatable; what is not there is destroyed already. A crash in its middle is finished at the next start. */
export async function destroyMachine(
  { machines, drivers, journal }: Parts<"machines" | "drivers" | "journal">,
  id: string,
): Promise<void> {
  const record = machines.find(id);
  if (!record) return;
  if (record.phase !== "destroying") await machines.move(id, "destroy", {}, { durable: true });
  await drivers.of(record).destroy(machines.files(record));
  await rm(machines.files(record).diskImage, { force: true });
  // Nothing is left that an operation which could not be undone would still have to undo.
  await journal.remove(id);
  await machines.forget(id);
}
