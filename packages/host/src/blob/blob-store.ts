/**
 * Where checkpoints become durable. One contract suite (tests/contracts/blob.ts) runs against every store. Keys are
 * `[a-z0-9._/-]`, at most 512 characters, without `..` and empty parts. A failure is ClocheError `unavailable` (the store cannot be
 * reached), `resource_exhausted` (it is full) or `internal` (it answered what it should not).
 */
export interface BlobStore {
  /** Writes a blob, durable when it resolves. Replaces an older blob atomically: until then readers see the old one or none. */
  put(key: string, data: Uint8Array): Promise<void>;
  /** The whole blob, or its bytes [offset, offset + length), fewer if it is shorter. Undefined: no such blob. */
  get(key: string, range?: { offset: number; length: number }): Promise<Uint8Array | undefined>;
  /** Deleting a missing blob succeeds. */
  delete(key: string): Promise<void>;
  /** Every blob whose key starts with `prefix`, sorted by key. */
  list(prefix: string): Promise<BlobEntry[]>;
}

export interface BlobEntry {
  key: string;
  bytes: number;
  /** When it was written, by the store's clock; Infinity: unknown. */
  modifiedAtMs: number;
}

/** Throws for a key that a store could misread. We make all keys, so that is a broken invariant. */
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
