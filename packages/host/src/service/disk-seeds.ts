// Where a new machine's disk comes from: a template's image, or a checkpoint's.
import { ClocheError } from "@cloche/protocol";
import type { Templates } from "../disk/template.ts";
import type { MachineSpecRecord } from "./machine-record.ts";

export interface CheckpointSeeds {
  /**
   * Calls `use` with the image of a checkpoint of the team, which stays there until `use` has ended. Throws not_found,
   * and failed_precondition where the checkpoint is not durable yet or another runtime wrote it.
   */
  withImage(
    checkpointId: string,
    spec: MachineSpecRecord,
    use: (image: string) => Promise<void>,
  ): Promise<void>;
}

export class DiskSeeds {
  readonly #templates: Templates;
  readonly #checkpoints: CheckpointSeeds | undefined;

  constructor(templates: Templates, checkpoints: CheckpointSeeds | undefined) {
    this.#templates = templates;
    this.#checkpoints = checkpoints;
  }

  async withSeed(spec: MachineSpecRecord, use: (image: string) => Promise<void>): Promise<void> {
    if (spec.checkpointId === "") return use(await this.#templates.ofSize(spec.diskMb));
    if (!this.#checkpoints)
      throw new ClocheError("unimplemented", "checkpoint_id: checkpoints are not there yet");
    return this.#checkpoints.withImage(spec.checkpointId, spec, use);
  }
}
