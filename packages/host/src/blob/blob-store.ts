/**
 * Where checkpoints become durable. One contract suite (tests/contracts/blob.ts) runs against every store. Keys are
 * `[a-z0-9._/-]`, at most 512 characters, without `..` and empty parts. A failure is ClocheError `unavailable` (the store cannot be
 * reached), `resource_exhausted` (it is full) or `internal` (it answered what it should not).
 */
export interface BlobStore {
  /** Durable and whole when it resolves; replaces what was there in one step. Until then readers see the old or nothing. */
  put(key: string, data: Uint8Array): Promise<void>;
  /** The whole blob, or the bytes [offset, offset + length) of it; undefined: no such blob. Fewer bytes: it is shorter. */
  get(key: string, range?: { offset: number; length: number }): Promise<Uint8Array | undefined>;
  /** Deleting what is not there succeeds. */
  delete(key: string): Promise<void>;
  /** Every blob whose key starts with `prefix`, sorted by key. */
  list(prefix: string): Promise<BlobEntry[]>;
}

export interface BlobEntry {
  key: string;
  bytes: number;
  /** When it was written, by the store's clock; Infinity: it does not say. */
  modifiedAtMs: number;
}

/** Throws on a key that a store could misread; keys are made by us, so this is a broken invariant. */
export function checkKey(key: string): void {
  if (
    !/^[a-z0-9][a-z0-9._/-]{0,511}$/.test(key) ||
    key.includes("..") ||
    key.includes("//") ||
    key.endsWith("/")
  ) {
    throw new Error(`unusable blob key ${JSON.stringify(key)}`);
  }
}
