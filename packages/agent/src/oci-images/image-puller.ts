/**
 * Fetches an image from its source into the blob cache and unpacks it, with all digests and sizes verified. Runs in the pull process. A
 * failure leaves only complete, verified blobs; the agent removes those that no container uses.
 */
import { statfsSync } from "node:fs";
import { createHash } from "node:crypto";
import { humanBytes } from "@cloche/protocol";
import { BlobCache } from "./blobs.ts";
import { ImageError } from "./image-error.ts";
import { imageLimits } from "./image-limits.ts";
import { ImageTree } from "./image-tree.ts";
import { checked, decompress } from "./layers.ts";
import {
  choosePlatform,
  type Descriptor,
  type ImageConfig,
  type ImageManifest,
  parseConfig,
  parseManifest,
} from "./manifest.ts";
import { PullMeter } from "./pull-meter.ts";
import type { PulledImage, PullListener } from "./pull-protocol.ts";
import { PassingError } from "./registry.ts";
import type { ImageSource } from "./source.ts";
import { TarReader } from "./tar-reader.ts";
import { unpack } from "./unpack.ts";

export interface PullOptions extends PullListener {
  source: ImageSource;
  /** The digest that the reference itself names. */
  digest: string | undefined;
  architecture: string;
  imagesFolder: string;
  rootFolder: string;
  /** Waits between attempts. */
  pause(ms: number): Promise<void>;
}

export async function pullImage(options: PullOptions): Promise<PulledImage> {
  const blobs = new BlobCache(options.imagesFolder);
  const { manifest, digest } = await resolveManifest(options, blobs);
  checkSpace(options.imagesFolder, missingBytes(manifest, blobs));
  await keepBlob(options, blobs, manifest.config);
  if (manifest.config.sizeBytes > imageLimits.configBytes)
    throw new ImageError("the image's config is too large");
  const config = parseConfig(blobs.bytes(manifest.config.digest));
  if (config.diffIds.length !== manifest.layers.length) {
    throw new ImageError("the image's config and manifest tell of different numbers of layers");
  }
  const layers = distinct(manifest.layers);
  const meter = new PullMeter(
    layers,
    (layer) => blobs.has(layer),
    (progress) => options.progress(progress),
  );
  await keepLayers(options, blobs, manifest.layers, meter);
  meter.unpacking();
  await unpackImage(options, blobs, manifest, config);
  return {
    digest,
    config,
    blobs: [digest, manifest.config.digest, ...manifest.layers.map((layer) => layer.digest)],
  };
}

/** Follows the reference through indexes to the manifest for this machine. */
async function resolveManifest(
  { source, digest, architecture }: PullOptions,
  blobs: BlobCache,
): Promise<{ manifest: ImageManifest; digest: string }> {
  let bytes = await source.root();
  let at = digest ?? digestOf(bytes);
  for (let depth = 0; depth <= imageLimits.indexDepth; depth += 1) {
    checkDigest(bytes, at);
    const parsed = parseManifest(bytes);
    if ("manifest" in parsed) {
      await blobs.keep({ mediaType: "", digest: at, sizeBytes: bytes.length }, only(bytes));
      return { manifest: parsed.manifest, digest: at };
    }
    const chosen = choosePlatform(parsed.index, architecture);
    if (chosen.sizeBytes > imageLimits.manifestBytes)
      throw new ImageError("the image's manifest is too large");
    bytes = blobs.has(chosen) ? blobs.bytes(chosen.digest) : await source.manifest(chosen);
    at = chosen.digest;
  }
  throw new ImageError("the image's index leads to too many others");
}

async function keepLayers(
  options: PullOptions,
  blobs: BlobCache,
  layers: readonly Descriptor[],
  meter: PullMeter,
): Promise<void> {
  const missing = distinct(layers).filter((layer) => !blobs.has(layer));
  const totalBytes = missing.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
  const cached = layers.length - missing.length;
  options.note(
    `${layers.length} layers${cached > 0 ? `, ${cached} of them here already` : ""}; to fetch: ${humanBytes(totalBytes)}`,
  );
  let fetched = 0;
  const queue = [...missing];
  const work = async (): Promise<void> => {
    for (let layer = queue.shift(); layer !== undefined; layer = queue.shift()) {
      await keepBlob(options, blobs, layer, meter);
      meter.done(layer);
      fetched += 1;
      options.note(
        `fetched ${fetched}/${missing.length}: ${layer.digest.slice(0, 19)} ${humanBytes(layer.sizeBytes)}`,
      );
    }
  };
  await Promise.all(Array.from({ length: imageLimits.parallelLayers }, work));
}

/** Fetches a blob; repeats after failures that may be temporary. */
async function keepBlob(
  { source, pause, note }: PullOptions,
  blobs: BlobCache,
  blob: Descriptor,
  meter?: PullMeter,
): Promise<void> {
  for (let attempt = 1; !blobs.has(blob); attempt += 1) {
    try {
      await blobs.keep(blob, source.blob(blob), (bytes) => meter?.received(blob, bytes));
    } catch (error) {
      meter?.again(blob);
      const passing = error instanceof PassingError || !(error instanceof ImageError || isDiskFull(error));
      if (!passing || attempt >= imageLimits.attempts) throw error;
      note(
        `fetching ${blob.digest.slice(0, 19)} failed (${error instanceof Error ? error.message : ""}); trying again`,
      );
      await pause(500 * attempt);
    }
  }
}

async function unpackImage(
  options: PullOptions,
  blobs: BlobCache,
  manifest: ImageManifest,
  config: ImageConfig,
): Promise<void> {
  const { imagesFolder, rootFolder, note } = options;
  const { blocks, bsize } = statfsSync(imagesFolder);
  const tar = (index: number): AsyncIterable<Buffer> =>
    decompress(blobs.stream(manifest.layers[index]?.digest ?? ""));
  const tree = new ImageTree();
  for (const [index, diffId] of config.diffIds.entries()) {
    tree.beginLayer();
    const reader = new TarReader(checked(tar(index), diffId, blocks * bsize));
    for (let number = 0; ; number += 1) {
      const entry = await reader.next();
      if (entry === undefined) break;
      tree.add(entry, number);
    }
  }
  const plan = tree.plan();
  checkSpace(imagesFolder, plan.totalBytes);
  note(`unpacking ${humanBytes(plan.totalBytes)}`);
  if (plan.leftOut > 0) note(`${plan.leftOut} device files of the image are left out`);
  await unpack(plan, rootFolder, tar);
}

function missingBytes(manifest: ImageManifest, blobs: BlobCache): number {
  return distinct([manifest.config, ...manifest.layers])
    .filter((blob) => !blobs.has(blob))
    .reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
}

/** Throws the error of a full disk before anything is written. */
function checkSpace(folder: string, neededBytes: number): void {
  const { bavail, bsize } = statfsSync(folder);
  if (neededBytes > bavail * bsize) {
    throw new DiskFullError(
      `the sandbox's disk is too full for the image: it takes ${humanBytes(neededBytes)}, ${humanBytes(bavail * bsize)} are free`,
    );
  }
}

export class DiskFullError extends ImageError {}

/** Whether the disk is full, rather than the image at fault. */
export function isDiskFull(error: unknown): boolean {
  const code = (error as NodeJS.ErrnoException | null)?.code;
  return error instanceof DiskFullError || code === "ENOSPC" || code === "EDQUOT";
}

function checkDigest(bytes: Buffer, digest: string): void {
  const [algorithm = ""] = digest.split(":");
  if (digestOf(bytes, algorithm) !== digest)
    throw new ImageError(`the manifest ${digest} has another content than its digest says`);
}

const digestOf = (bytes: Buffer, algorithm = "sha256"): string =>
  `${algorithm}:${createHash(algorithm).update(bytes).digest("hex")}`;

function distinct(blobs: readonly Descriptor[]): Descriptor[] {
  return [...new Map(blobs.map((blob) => [blob.digest, blob])).values()];
}

async function* only(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes;
}
