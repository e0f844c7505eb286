// An OCI image layout, written without a container engine: layers as deterministic archives, a config and a manifest for
// each image, one index. The same files give the same digests: names are sorted, times are 0, owners are numbers.
import { spawn } from "node:child_process";
import { createHash, type Hash } from "node:crypto";
import { once } from "node:events";
import { createWriteStream } from "node:fs";
import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Transform, type Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { constants, createZstdCompress } from "node:zlib";

export interface Descriptor {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly platform?: { readonly architecture: string; readonly os: "linux" };
}

export interface Layer extends Descriptor {
  /** Of the archive before compression. */
  readonly diffId: string;
}

export interface ImageConfig {
  readonly entrypoint: readonly string[];
  readonly env: readonly string[];
  readonly labels: Readonly<Record<string, string>>;
}

const TYPE = "application/vnd.oci.image";
const EPOCH = "1970-01-01T00:00:00Z";
const ZSTD_LEVEL = 6;

/** GNU tar's options by which the same files always give the same archive. */
export const DETERMINISTIC_TAR = [
  "--sort=name",
  "--mtime=@0",
  "--numeric-owner",
  "--format=posix",
  "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
] as const;

export class OciLayout {
  readonly #dir: string;
  readonly #manifests: Descriptor[] = [];

  private constructor(dir: string) {
    this.#dir = dir;
  }

  /** In a new folder, or in place of the layout that is there. */
  static async open(dir: string): Promise<OciLayout> {
    await rm(dir, { recursive: true, force: true });
    await mkdir(join(dir, "blobs/sha256"), { recursive: true });
    await writeFile(join(dir, "oci-layout"), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
    return new OciLayout(dir);
  }

  /** A layer of what GNU tar writes with these words besides DETERMINISTIC_TAR. */
  async layerOfTar(words: readonly string[]): Promise<Layer> {
    const tar = spawn("tar", ["--create", ...DETERMINISTIC_TAR, ...words], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const ended = once(tar, "close");
    const layer = await this.layer(tar.stdout);
    const [code] = (await ended) as [number];
    if (code !== 0) throw new Error(`tar ended with ${code}`);
    return layer;
  }

  /** A layer of an archive that is deterministic by itself. */
  async layer(archive: Readable): Promise<Layer> {
    const temporary = join(this.#dir, "blobs/layer.new");
    const [plain, packed] = [new Measured(), new Measured()];
    const params = { [constants.ZSTD_c_compressionLevel]: ZSTD_LEVEL };
    const steps = [plain, new EvenPieces(), createZstdCompress({ params }), packed] as const;
    await pipeline(archive, ...steps, createWriteStream(temporary));
    await rename(temporary, this.#blob(packed.digest));
    return {
      mediaType: `${TYPE}.layer.v1.tar+zstd`,
      digest: packed.digest,
      size: packed.bytes,
      diffId: plain.digest,
    };
  }

  /** `name` is what container runtimes import it as, for example `docker.io/library/cloche:1`. */
  async image(
    name: string,
    architecture: string,
    layers: readonly Layer[],
    config: ImageConfig,
  ): Promise<Descriptor> {
    const configBlob = await this.#json(`${TYPE}.config.v1+json`, {
      created: EPOCH,
      architecture,
      os: "linux",
      config: { Entrypoint: config.entrypoint, Env: config.env, Labels: config.labels },
      rootfs: { type: "layers", diff_ids: layers.map(({ diffId }) => diffId) },
      history: layers.map(() => ({ created: EPOCH, created_by: "deploy/images/build.ts" })),
    });
    const manifest = await this.#json(`${TYPE}.manifest.v1+json`, {
      schemaVersion: 2,
      mediaType: `${TYPE}.manifest.v1+json`,
      config: configBlob,
      layers: layers.map(({ mediaType, digest, size }) => ({ mediaType, digest, size })),
    });
    const [shortName = ""] = (name.split("/").at(-1) ?? "").split(":");
    this.#manifests.push({
      ...manifest,
      annotations: { "io.containerd.image.name": name, "org.opencontainers.image.ref.name": shortName },
      platform: { architecture, os: "linux" },
    });
    return manifest;
  }

  /** Writes the index: from here on the layout is whole. */
  async close(): Promise<void> {
    const index = { schemaVersion: 2, mediaType: `${TYPE}.index.v1+json`, manifests: this.#manifests };
    await writeFile(join(this.#dir, "index.json"), JSON.stringify(index));
  }

  async #json(mediaType: string, value: object): Promise<Descriptor> {
    const bytes = Buffer.from(JSON.stringify(value));
    const digest = digestOf(createHash("sha256").update(bytes));
    await writeFile(this.#blob(digest), bytes);
    return { mediaType, digest, size: bytes.length };
  }

  #blob(digest: string): string {
    return join(this.#dir, "blobs", digest.replace(":", "/"));
  }
}

const digestOf = (hash: Hash): string => `sha256:${hash.digest("hex")}`;

/** Passes bytes on; knows their number and digest when all have passed. */
class Measured extends Transform {
  readonly #hash = createHash("sha256");
  bytes = 0;
  digest = "";

  override _transform(chunk: Buffer, _encoding: string, done: (error: null, chunk: Buffer) => void): void {
    this.bytes += chunk.length;
    this.#hash.update(chunk);
    done(null, chunk);
  }

  override _flush(done: () => void): void {
    this.digest = digestOf(this.#hash);
    done();
  }
}

const PIECE_BYTES = 1024 * 1024;

/** Pieces of one size: what the compressor makes of the same bytes depends on how they come. */
class EvenPieces extends Transform {
  #parts: Buffer[] = [];
  #bytes = 0;

  override _transform(chunk: Buffer, _encoding: string, done: () => void): void {
    this.#parts.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes >= PIECE_BYTES) {
      const all = Buffer.concat(this.#parts);
      let from = 0;
      for (; all.length - from >= PIECE_BYTES; from += PIECE_BYTES)
        this.push(all.subarray(from, from + PIECE_BYTES));
      this.#parts = [all.subarray(from)];
      this.#bytes = all.length - from;
    }
    done();
  }

  override _flush(done: () => void): void {
    if (this.#bytes > 0) this.push(Buffer.concat(this.#parts));
    done();
  }
}
