import type { CheckpointHeader, PackReference } from "./manifest.ts";

/** What `record.json` of a checkpoint holds. */
export interface CheckpointInfo extends CheckpointHeader {
  visible: boolean;
  /** `disk.img` is there. */
  local: boolean;
  /** Checkpoint whose image this disk may share blocks with; empty: the template. */
  parent: string;
  deleted: boolean;
  packs: PackReference[];
}
