// Memory images of one machine, which lie in its directory: that of a suspended machine, and those that no longer count.
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import type { SnapshotFiles } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Parts } from "./parts.ts";

/** That of a suspended machine. */
export function imageOf({ machines }: Parts<"machines">, id: string): SnapshotFiles {
  const record = machines.get(id);
  if (record.snapshot === undefined) throw new ClocheError("internal", `machine ${id} has no memory image`);
  return snapshotOf({ machines }, record, record.snapshot);
}

/** Memory images that no longer count. Repeatable. */
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
