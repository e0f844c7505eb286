/** Writes one checkpoint into storage, on the nearest base that it shares blocks with. In a cluster also names it. */
import { ClocheError } from "@cloche/protocol";
import type { BaseOfCheckpoint, CheckpointArchive } from "./archive.ts";
import type { CheckpointInfo } from "./checkpoint-info.ts";
import type { CheckpointNames } from "./checkpoint-names.ts";
import type { Manifest, PackReference } from "./manifest.ts";
import type { TemplateBases } from "./template-bases.ts";

export interface CheckpointWriterOptions {
  archive: CheckpointArchive;
  names?: Pick<CheckpointNames, "hold" | "name"> | undefined;
  templates: TemplateBases;
}

/** The checkpoint before it. Its image must stay on the pool during the write. */
export interface Parent {
  id: string;
  image: string;
}

export class CheckpointWriter {
  readonly #options: CheckpointWriterOptions;

  constructor(options: CheckpointWriterOptions) {
    this.#options = options;
  }

  /** Answers the checkpoint's packs once it is visible. `signal` stops it between chunks. */
  async write(
    info: CheckpointInfo,
    image: string,
    parent: Parent | undefined,
    signal: AbortSignal,
  ): Promise<PackReference[]> {
    const { archive, names } = this.#options;
    const { visible: _, local: _local, parent: _parent, deleted: _deleted, packs: _packs, ...header } = info;
    const base = (parent && (await this.#parentBase(info, parent))) ?? (await this.#templateBase(info));
    const { packs } = await archive.write(header, image, base, signal);
    signal.throwIfAborted();
    await names?.name({ header, packs });
    return packs;
  }

  async #parentBase(info: CheckpointInfo, { id, image }: Parent): Promise<BaseOfCheckpoint | undefined> {
    const manifest = await this.#options.archive.read(id).catch(() => undefined);
    return manifest !== undefined && (await this.#holds(info, manifest)) ? { image, manifest } : undefined;
  }

  async #templateBase(info: CheckpointInfo): Promise<BaseOfCheckpoint> {
    const { templates } = this.#options;
    const base = await templates.of(info.disk_mb);
    if (await this.#holds(info, base.manifest)) return base;
    await templates.forget(base);
    throw new ClocheError("unavailable", "the template in storage was swept: it is stored again");
  }

  /** Whether the upload may inherit the packs of `base`. If so, they are not swept from now on. */
  async #holds({ id }: CheckpointInfo, base: Manifest): Promise<boolean> {
    const { names } = this.#options;
    if (names === undefined) return true;
    try {
      await names.hold({ name: `checkpoints/${id}`, inherited: base.packs });
      return true;
    } catch (error) {
      if (ClocheError.from(error).code === "failed_precondition") return false;
      throw error;
    }
  }
}
