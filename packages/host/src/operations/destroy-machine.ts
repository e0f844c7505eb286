/** Destroy: removes a machine's processes, then its disk, then its record. */
import { rm } from "node:fs/promises";
import type { Parts } from "./parts.ts";

/** Repeatable: an unknown machine is already destroyed. The next start finishes a destroy that a crash cut off. */
export async function destroyMachine(
  { machines, drivers, journal }: Parts<"machines" | "drivers" | "journal">,
  id: string,
): Promise<void> {
  const record = machines.find(id);
  if (!record) return;
  if (record.phase !== "destroying") await machines.move(id, "destroy", {}, { durable: true });
  await drivers.of(record).destroy(machines.files(record));
  await rm(machines.files(record).diskImage, { force: true });
  // An operation that could not be undone has nothing left to undo.
  await journal.remove(id);
  await machines.forget(id);
}
