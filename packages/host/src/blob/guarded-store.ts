/**
 * The store of checkpoints as the host uses it. Refuses writes and deletes while the store's owner is unknown (it could not be reached
 * at the start) or is another service. `checkpoint/catalogue.ts` tries uploads again; reads are always allowed.
 */
import { ClocheError } from "@cloche/protocol";
import type { BlobEntry, BlobStore } from "./blob-store.ts";

export class GuardedStore implements BlobStore {
  readonly #inner: BlobStore;
  #closed: string | undefined = "it is not known yet whose the checkpoint storage is";

  constructor(inner: BlobStore) {
    this.#inner = inner;
  }

  /** Sets why nothing may be written; undefined: writes are allowed. */
  guard(why: string | undefined): void {
    this.#closed = why;
  }

  async put(key: string, data: Uint8Array): Promise<void> {
    this.#check();
    await this.#inner.put(key, data);
  }

  get(key: string, range?: { offset: number; length: number }): Promise<Uint8Array | undefined> {
    return this.#inner.get(key, range);
  }

  async delete(key: string): Promise<void> {
    this.#check();
    await this.#inner.delete(key);
  }

  list(prefix: string): Promise<BlobEntry[]> {
    return this.#inner.list(prefix);
  }

  #check(): void {
    if (this.#closed !== undefined) throw new ClocheError("unavailable", this.#closed);
  }
}
