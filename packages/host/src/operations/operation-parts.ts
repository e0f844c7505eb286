// What every operation of a machine works with.
import type { Machines } from "../machines/machines.ts";
import type { DiskSeeds } from "./disk-seeds.ts";
import type { GroupSnapshots } from "./group-snapshots.ts";
import type { HostJournal } from "./journal.ts";
import type { SharedSnapshots } from "./shared-snapshots.ts";

export interface OperationParts {
  machines: Machines;
  journal: HostJournal;
  seeds: DiskSeeds;
  snapshots: SharedSnapshots;
  groups: GroupSnapshots;
}
