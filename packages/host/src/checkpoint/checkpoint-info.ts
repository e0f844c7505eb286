import type { CheckpointHeader, PackReference } from "./manifest.ts";

/** Content of a checkpoint's `record.json`. */
export interface CheckpointInfo extends CheckpointHeader {
  visible: boolean;
  /** `disk.img` is on the pool. */
  local: boolean;
  /** The checkpoint whose image this disk may share blocks with; empty: the template's. */
  parent: string;
  deleted: boolean;
  packs: PackReference[];
}
