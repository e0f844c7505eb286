import type { Descriptor } from "./manifest.ts";

/** Where an image's manifests and blobs are read from. What it answers is not trusted: the caller checks every digest. */
export interface ImageSource {
  /** The manifest or index that the reference names. */
  root(): Promise<Buffer>;
  /** A manifest named by another. */
  manifest(descriptor: Descriptor): Promise<Buffer>;
  /** The bytes of a config or layer. Safe to call again after a failure. */
  blob(descriptor: Descriptor): AsyncIterable<Buffer>;
}
