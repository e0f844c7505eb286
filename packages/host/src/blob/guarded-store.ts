/**
 * The store of checkpoints as the host sees it: it writes and deletes nothing while nobody knows whose the store is (it could not be reached at
 * the start), or once it is another's. Uploads are tried again by `checkpoint/catalogue.ts`; reading does no harm.
 */
import { ClocheError } from "@cloche/protocol";
import type { BlobEntry, BlobStore } from "./blob-store.ts";

export class GuardedStore implements BlobStore {
  readonly #inner: BlobStore;
  #closed: string | undefined = "it is not known yet whose the checkpoint storage is";

  constructor(inner: BlobStore) {
    this.#inner = inner;
  }

  /** Why nothing may be written; undefined: it may. */
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
