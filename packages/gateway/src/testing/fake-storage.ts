/** The storage that the fake hosts of a cluster share: images of suspended machines, and checkpoints. */
import { create } from "@bufbuild/protobuf";
import { type HostCheckpoint, type StoredImage, StoredImageSchema } from "@cloche/protocol/host";

export class FakeStorage {
  readonly checkpoints: HostCheckpoint[] = [];
  /** By the image's key, the memory of the suspended machine; empty: it was suspended without memory. */
  readonly images = new Map<string, string>();
  readonly #classes = new Map<string, string>();
  #made = 0;

  /** The class of the CPU that the memory was saved on. */
  classOf(key: string): string {
    return this.#classes.get(key) ?? "";
  }

  /** Stores an image and returns its description. */
  store(sandboxId: string, memory: string, cpuClass: string): StoredImage {
    this.#made += 1;
    const key = `${sandboxId}-${this.#made}`;
    this.images.set(key, memory);
    this.#classes.set(key, memory === "" ? "" : cpuClass);
    const packs = [{ id: `pack-${String(this.#made).padStart(20, "0")}`, bytes: 1_000 }];
    return create(StoredImageSchema, { key, cpuClass: this.classOf(key), bytes: 1_000, packs });
  }
}
