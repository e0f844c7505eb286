import type { PullProgress } from "@cloche/protocol";
import type { Descriptor } from "./manifest.ts";

/** Told each time so much of the whole has come: often enough for who watches, and no message for every chunk. */
const tellEvery = 1 / 200;

/** Counts the layers of one image as they come. `tell` is called at the beginning and whenever there is something to tell. */
export class PullMeter {
  readonly #layers: readonly Descriptor[];
  readonly #tell: (progress: PullProgress) => void;
  readonly #bytes = new Map<string, number>();
  readonly #done = new Set<string>();
  #stage: PullProgress["stage"] = "fetching";
  #untoldBytes = 0;

  /** `layers`, each once; `have` tells those that are here already. */
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

  /** What came of it was thrown away: it comes again from its beginning. */
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
