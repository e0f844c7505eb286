import type { PullProgress } from "@cloche/protocol";
import type { Descriptor } from "./manifest.ts";

/** Progress is told once for each such share of the whole: often enough for a viewer, and not for every chunk. */
const tellEvery = 1 / 200;

/** Measures the progress of one image's layers. `tell` is called at the beginning and at each step of progress. */
export class PullMeter {
  readonly #layers: readonly Descriptor[];
  readonly #tell: (progress: PullProgress) => void;
  readonly #bytes = new Map<string, number>();
  readonly #done = new Set<string>();
  #stage: PullProgress["stage"] = "fetching";
  #untoldBytes = 0;

  /** `layers`: each once; `have` says which are already on the disk. */
  constructor(
    layers: readonly Descriptor[],
    have: (layer: Descriptor) => boolean,
    tell: (progress: PullProgress) => void,
  ) {
    this.#layers = layers;
    this.#tell = tell;
    for (const layer of layers) if (have(layer)) this.#count(layer);
    this.#say();
  }

  received({ digest }: Descriptor, bytes: number): void {
    this.#bytes.set(digest, (this.#bytes.get(digest) ?? 0) + bytes);
    this.#untoldBytes += bytes;
    if (this.#untoldBytes >= this.#totalBytes() * tellEvery) this.#say();
  }

  /** Resets a layer that is fetched again from its beginning. */
  again({ digest }: Descriptor): void {
    this.#bytes.delete(digest);
    this.#say();
  }

  done(layer: Descriptor): void {
    this.#count(layer);
    this.#say();
  }

  unpacking(): void {
    this.#stage = "unpacking";
    this.#say();
  }

  #count({ digest, sizeBytes }: Descriptor): void {
    this.#done.add(digest);
    this.#bytes.set(digest, sizeBytes);
  }

  #totalBytes(): number {
    return this.#layers.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
  }

  #say(): void {
    this.#untoldBytes = 0;
    this.#tell({
      stage: this.#stage,
      layers_done: this.#done.size,
      layers_total: this.#layers.length,
      bytes_done: [...this.#bytes.values()].reduce((sum, bytes) => sum + bytes, 0),
      bytes_total: this.#totalBytes(),
    });
  }
}
