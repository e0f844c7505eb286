/**
 * The image of a fresh disk, which every host makes itself, so that uploads and downloads need not carry it. In a cluster also
 * unchanging files of drivers that others are clones of (`ofFile`). Chunks are stored once, with a manifest that belongs to no team.
 *
 * On a single machine that manifest has the template's key as its name. In a cluster each host builds its template, and the bytes
 * may differ (each file system has its own id). There the name is a digest of the content, and chunks are equal only if their
 * SHA-256 is.
 */
import { createHash } from "node:crypto";
import { stat } from "node:fs/promises";
import { rfc3339 } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { BaseOfCheckpoint, CheckpointArchive, LocalImage } from "./archive.ts";
import type { CheckpointNames } from "./checkpoint-names.ts";
import { type CheckpointHeader, type Manifest, ManifestError } from "./manifest.ts";

/** Start of the ids of templates' manifests; no checkpoint's id begins so (isCheckpointId). */
export const templateKey = "template-";

/** Far below 30 days, after which a template's name ends if it was not held again. */
const holdAgainMs = 12 * 3_600_000;

/** The template that new disks are cloned from. */
export interface DiskTemplate {
  /** Changes with its content. */
  readonly name: string;
  image(diskMb: number): Promise<string>;
}

export interface TemplateBasesOptions {
  archive: CheckpointArchive;
  template: DiskTemplate;
  /** Only on a host in a cluster. */
  names?: Pick<CheckpointNames, "hold"> | undefined;
  nowMs(): number;
  /** Ends uploads. */
  signal: AbortSignal;
}

export class TemplateBases {
  readonly #options: TemplateBasesOptions;
  readonly #bases = new Map<string, Promise<BaseOfCheckpoint>>();
  readonly #heldAtMs = new Map<string, number>();
  readonly #locals = new Map<string, Promise<LocalImage>>();

  constructor(options: TemplateBasesOptions) {
    this.#options = options;
  }

  /** For an upload: the template's image and its manifest in storage. */
  async of(diskMb: number): Promise<BaseOfCheckpoint> {
    return this.#of(await this.#disk(diskMb));
  }

  /** For an upload of a clone of `image`, which is replaced only as a whole. Only in a cluster. */
  async ofFile(image: string): Promise<BaseOfCheckpoint> {
    return this.#of(await file(image));
  }

  /** For a download: the local template. Undefined on a single machine, where images are fetched whole. */
  async local(diskMb: number): Promise<LocalImage | undefined> {
    return this.#local(await this.#disk(diskMb));
  }

  /** For a download: a local file that may be alike. */
  async localFile(image: string): Promise<LocalImage | undefined> {
    return this.#local(await file(image));
  }

  /** Call when a base is no longer in storage. */
  async forget(base: BaseOfCheckpoint): Promise<void> {
    for (const [key, known] of this.#bases)
      if ((await known.catch(() => undefined)) === base) this.#forget(key);
  }

  #forget(key: string): void {
    this.#bases.delete(key);
    this.#heldAtMs.delete(key);
  }

  async #of(original: Original): Promise<BaseOfCheckpoint> {
    const { nowMs } = this.#options;
    const { key } = original;
    if (nowMs() - (this.#heldAtMs.get(key) ?? nowMs()) > holdAgainMs) this.#forget(key);
    const base = await kept(this.#bases, key, () => this.#store(original));
    this.#heldAtMs.set(key, this.#heldAtMs.get(key) ?? nowMs());
    return base;
  }

  async #local({ key, image }: Original): Promise<LocalImage | undefined> {
    const { names, archive } = this.#options;
    if (names === undefined) return undefined;
    return await kept(this.#locals, key, () => archive.localImage(image));
  }

  async #disk(diskMb: number): Promise<Original> {
    return { key: String(diskMb), image: await this.#options.template.image(diskMb), diskMb };
  }

  /** The manifests in storage that uploads of this process are based on. */
  async manifests(): Promise<Manifest[]> {
    const bases = await Promise.allSettled(this.#bases.values());
    return bases.flatMap((base) => (base.status === "fulfilled" ? [base.value.manifest] : []));
  }

  async #store(original: Original): Promise<BaseOfCheckpoint> {
    const { archive, template, names, nowMs, signal } = this.#options;
    const { image, diskMb } = original;
    const local = await this.#local(original);
    const name = local === undefined ? template.name : digestOf(local);
    const id = `${templateKey}${name}-${diskMb}`;
    const known = await archive.read(id).catch((error: unknown) => {
      // In a cluster do not overwrite a manifest that merely could not be read now: other hosts use it.
      if (names !== undefined && !(error instanceof ManifestError)) throw error;
    });
    if (known !== undefined && (await this.#isStillNamed(known))) return { image, manifest: known };
    const header: CheckpointHeader = {
      id,
      name: template.name,
      team_id: "",
      sandbox_id: "",
      created_at: rfc3339(nowMs()),
      size_bytes: 0,
      runtime: "",
      disk_bytes: (await stat(image)).size,
      disk_mb: diskMb,
      running_services: [],
    };
    const manifest = await archive.write(header, image, undefined, signal);
    await names?.hold({ name: `checkpoints/${id}`, inherited: [], own: manifest.packs });
    return { image, manifest };
  }

  /** Holds the template's packs. False: it was not held for a month, and they may be swept already. */
  async #isStillNamed({ header, packs }: Manifest): Promise<boolean> {
    const { names } = this.#options;
    try {
      await names?.hold({ name: `checkpoints/${header.id}`, inherited: packs });
      return true;
    } catch (error) {
      if (ClocheError.from(error).code === "failed_precondition") return false;
      throw error;
    }
  }
}

interface Original {
  /** Another one for other content. */
  readonly key: string;
  readonly image: string;
  /** 0: no disk. */
  readonly diskMb: number;
}

async function file(image: string): Promise<Original> {
  // Links and permissions change neither number.
  const { ino, mtimeNs } = await stat(image, { bigint: true });
  return { key: `${image} ${ino} ${mtimeNs}`, image, diskMb: 0 };
}

/** Digest of an image's content; short, because it is part of a key. */
function digestOf({ hashes }: LocalImage): string {
  const digest = createHash("sha256");
  for (const hash of hashes) digest.update(hash ?? "0");
  return digest.digest("hex").slice(0, 32);
}

/** Caches the value of `make` by key. A failure is not cached: the next call tries again. */
function kept<Value>(
  map: Map<string, Promise<Value>>,
  key: string,
  make: () => Promise<Value>,
): Promise<Value> {
  const known = map.get(key);
  if (known !== undefined) return known;
  const made = make();
  map.set(key, made);
  made.catch(() => map.delete(key));
  return made;
}
