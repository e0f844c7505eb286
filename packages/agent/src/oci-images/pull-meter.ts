import type { PullProgress } from "@cloche/protocol";
import type { Descriptor } from "./manifest.ts";

/** Progress is told once for each such share of the whole: often enough for a viewer, and not for every chunk. */
const reportEvery = 1 / 200;

/** Measures the progress of one image's layers. `tell` is called at the beginning and at each step of progress. */
export class PullMeter {
  readonly #layers: readonly Descriptor[];
  readonly #onProgress: (progress: PullProgress) => void;
  readonly #bytes = new Map<string, number>();
  readonly #done = new Set<string>();
  #stage: PullProgress["stage"] = "fetching";
  #unreportedBytes = 0;

  /** `layers`: each once; `have` says which are already on the disk. */
  constructor(
    layers: readonly Descriptor[],
    have: (layer: Descriptor) => boolean,
    onProgress: (progress: PullProgress) => void,
  ) {
    this.#layers = layers;
    this.#onProgress = onProgress;
    for (const layer of layers) if (have(layer)) this.#count(layer);
    this.#report();
  }

  received({ digest }: Descriptor, bytes: number): void {
    this.#bytes.set(digest, (this.#bytes.get(digest) ?? 0) + bytes);
    this.#unreportedBytes += bytes;
    if (this.#unreportedBytes >= this.#totalBytes() * reportEvery) this.#report();
  }

  /** Resets a layer that is fetched again from its beginning. */
  again({ digest }: Descriptor): void {
    this.#bytes.delete(digest);
    this.#report();
  }

  done(layer: Descriptor): void {
    this.#count(layer);
    this.#report();
  }

  unpacking(): void {
    this.#stage = "unpacking";
    this.#report();
  }

  #count({ digest, sizeBytes }: Descriptor): void {
    this.#done.add(digest);
    this.#bytes.set(digest, sizeBytes);
  }

  #totalBytes(): number {
    return this.#layers.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
  }

  #report(): void {
    this.#unreportedBytes = 0;
    this.#onProgress({
      stage: this.#stage,
      layers_done: this.#done.size,
      layers_total: this.#layers.length,
      bytes_done: [...this.#bytes.values()].reduce((sum, bytes) => sum + bytes, 0),
      bytes_total: this.#totalBytes(),
    });
  }
}
