/** The parts that machine operations use. */
import type { DiskSeeds } from "./disk-seeds.ts";
import type { GroupSnapshots } from "./group-snapshots.ts";
import type { StoredImages } from "../suspended/stored-images.ts";
import type { MachineParts } from "./parts.ts";
import type { SharedSnapshots } from "./shared-snapshots.ts";

export interface OperationParts extends MachineParts {
  seeds: DiskSeeds;
  snapshots: SharedSnapshots;
  groups: GroupSnapshots;
  /** Only on a host in a cluster. */
  images?: StoredImages | undefined;
}
