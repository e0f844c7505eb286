/**
 * Names of a single machine's storage: every checkpoint that has a manifest there, because only this host writes. At the start
 * all manifests are read, and packs that none of them names are swept.
 */
import type { Log } from "@cloche/base";
import { isCheckpointId } from "@cloche/protocol";
import type { CheckpointArchive } from "./archive.ts";
import type { CheckpointInfo } from "./checkpoint-info.ts";
import { ManifestError, type PackReference } from "./manifest.ts";
import { templateKey, type TemplateBases } from "./template-bases.ts";

export interface ManifestNamesOptions {
  archive: CheckpointArchive;
  templates: TemplateBases;
  /** Name of this host's present template. */
  templateName: string;
  /** The catalogue's checkpoints, by id. */
  known(): Map<string, CheckpointInfo>;
  log: Log;
}

export class ManifestNames {
  readonly #options: ManifestNamesOptions;

  constructor(options: ManifestNamesOptions) {
    this.#options = options;
  }

  /** Answers checkpoints in storage that are unknown here. Known ones that are missing in storage are marked for upload again. */
  async adopt(): Promise<CheckpointInfo[]> {
    const { archive, log } = this.#options;
    const known = this.#options.known();
    const stored = new Set(await archive.list());
    const adopted: CheckpointInfo[] = [];
    for (const id of stored) {
      if (!isCheckpointId(id) || known.has(id)) continue;
      const manifest = await archive.read(id).catch((error: unknown) => {
        log.error({ err: error, checkpoint_id: id }, "a checkpoint in storage cannot be read");
      });
      if (!manifest) continue;
      const { header, packs } = manifest;
      adopted.push({ ...header, visible: true, local: false, parent: "", deleted: false, packs });
    }
    for (const info of known.values())
      if (info.visible && !stored.has(info.id) && info.local && !info.deleted) info.visible = false;
    return adopted;
  }

  async sweep(): Promise<void> {
    const { archive, log } = this.#options;
    try {
      await this.#forgetOldTemplates();
      const removed = await archive.sweep(() => this.#packsOfOthers(""));
      if (removed > 0) log.info({ removed }, "unreferenced packs removed from storage");
    } catch (error) {
      if (!(error instanceof UnknownPacks)) throw error;
      log.error({ err: error }, "no pack removed from storage: the packs in use are unknown");
    }
  }

  /** Answers the bytes freed in storage. */
  async drop(id: string): Promise<number> {
    const { archive, log } = this.#options;
    const manifest = await archive.read(id).catch(onlyDamage);
    if (manifest === "damaged") await archive.forget(id);
    if (manifest === "damaged" || manifest === undefined) return 0;
    let kept: PackReference[][];
    try {
      kept = await this.#packsOfOthers(id);
    } catch (error) {
      if (!(error instanceof UnknownPacks)) throw error;
      log.error({ err: error, checkpoint_id: id }, "packs of a deleted checkpoint stay in storage");
      // Keep all packs: a later start sweeps them.
      kept = [manifest.packs];
    }
    return await archive.delete(manifest, kept);
  }

  /** Removes manifests of templates that an update replaced. Checkpoints themselves name the packs that they share with a template. */
  async #forgetOldTemplates(): Promise<void> {
    const { archive, log, templateName } = this.#options;
    for (const id of await archive.listOld()) {
      if (!id.startsWith(templateKey) || id.startsWith(`${templateKey}${templateName}-`)) continue;
      await archive.forget(id);
      log.info({ template: id }, "the manifest of a template that is gone was removed from storage");
    }
  }

  /**
   * The packs of all templates and of all checkpoints except `id`, also of those in storage that are unknown here. Throws UnknownPacks
   * if a manifest cannot be read: then no pack may be removed.
   */
  async #packsOfOthers(id: string): Promise<PackReference[][]> {
    const { archive, templates } = this.#options;
    const known = this.#options.known();
    const others = [...known].filter(([other]) => other !== id).map(([, { packs }]) => packs);
    for (const { packs } of await templates.manifests()) others.push(packs);
    for (const other of await archive.list()) {
      if (other === id || this.#options.known().get(other)?.visible) continue;
      const manifest = await archive.read(other).catch((error: unknown) => {
        throw new UnknownPacks(`checkpoint ${other} in storage cannot be read`, { cause: error });
      });
      if (manifest !== undefined) others.push(manifest.packs);
    }
    return others;
  }
}

/** Answers only damage. If storage cannot be reached, throws: the manifest may be sound, and a later start would find it again. */
function onlyDamage(error: unknown): "damaged" {
  if (error instanceof ManifestError) return "damaged";
  throw error;
}

/** It is unknown which packs in storage are needed. Not used outside this file. */
class UnknownPacks extends Error {}
