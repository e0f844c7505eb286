import type { Descriptor } from "./manifest.ts";

/** A source of manifests and blobs. Its answers are not trusted: the caller verifies every digest. */
export interface ImageSource {
  /** The manifest or index that the reference names. */
  root(): Promise<Buffer>;
  /** A manifest that another one names. */
  manifest(descriptor: Descriptor): Promise<Buffer>;
  /** The bytes of a config or layer. May be called again after a failure. */
  blob(descriptor: Descriptor): AsyncIterable<Buffer>;
}
