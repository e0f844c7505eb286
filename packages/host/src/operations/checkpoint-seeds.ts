/** The first disk of a machine made from a checkpoint: create and fork with checkpoint_id. */
import { ClocheError } from "@cloche/protocol";
import type { CheckpointCatalogue } from "../checkpoint/catalogue.ts";
import { requireRuntime } from "./restore-checkpoint.ts";
import type { CheckpointSeeds } from "./disk-seeds.ts";

export function checkpointSeeds(checkpoints: CheckpointCatalogue): CheckpointSeeds {
  return {
    async withImage(checkpointId, spec, use) {
      const info = await checkpoints.find(spec.teamId, checkpointId);
      if (!info.visible)
        throw new ClocheError(
          "failed_precondition",
          `checkpoint_id: ${checkpointId} is not yet visible in storage; POST /v1/checkpoint/wait answers when it is`,
        );
      requireRuntime(info, spec.runtime);
      const leased = await checkpoints.lease(spec.teamId, checkpointId);
      try {
        await use(leased.image, info.disk_mb);
      } finally {
        leased.release();
      }
    },
  };
}
