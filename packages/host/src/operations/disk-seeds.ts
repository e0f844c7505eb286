/** Where a new machine's disk comes from: a template's image, or a checkpoint's. */
import type { Templates } from "../disk/template.ts";
import type { MachineSpecRecord } from "../machines/machine-record.ts";

/** `image`: the image to clone; it stays until the call ends. `sizeMb`: its size. */
export type UseSeed = (image: string, sizeMb: number) => Promise<void>;

export interface CheckpointSeeds {
  /**
   * Calls `use` with the image of a checkpoint of the team and keeps the image until `use` has ended. Throws not_found,
   * and failed_precondition if the checkpoint is not durable yet or was written by a runtime that may not seed this one.
   */
  withImage(checkpointId: string, spec: MachineSpecRecord, use: UseSeed): Promise<void>;
}

export class DiskSeeds {
  readonly #templates: Templates;
  readonly #checkpoints: CheckpointSeeds;

  constructor(templates: Templates, checkpoints: CheckpointSeeds) {
    this.#templates = templates;
    this.#checkpoints = checkpoints;
  }

  async withSeed(spec: MachineSpecRecord, use: UseSeed): Promise<void> {
    if (spec.checkpointId !== "") return this.#checkpoints.withImage(spec.checkpointId, spec, use);
    return use(await this.#templates.ofSize(spec.diskMb), spec.diskMb);
  }
}
