/**
 * Memory images of one machine, kept in its directory: the image of a suspended machine, and images that are obsolete.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import type { SnapshotFiles } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Parts } from "./parts.ts";

/** The memory image of a suspended machine. */
export function imageOf({ machines }: Parts<"machines">, id: string): SnapshotFiles {
  const record = machines.get(id);
  if (record.snapshot === undefined) throw new ClocheError("internal", `machine ${id} has no memory image`);
  return snapshotOf({ machines }, record, record.snapshot);
}

/** Removes the machine's memory image, which is obsolete once the machine runs. Repeatable. */
export async function dropSnapshots({ machines }: Parts<"machines">, id: string): Promise<void> {
  const record = machines.get(id);
  if (record.snapshot === undefined) return;
  await rm(snapshotOf({ machines }, record, record.snapshot).dir, { recursive: true, force: true });
  await machines.dropField(id, "snapshot");
}

export const snapshotOf = (
  { machines }: Parts<"machines">,
  record: MachineRecord,
  name: string,
): SnapshotFiles => ({
  dir: join(machines.files(record).dir, name),
});
