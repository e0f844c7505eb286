import type { PullProgress } from "@cloche/protocol";
import type { ImageConfig } from "./manifest.ts";

/**
 * Between the agent and its pull process (fd 3, a socket pair): the agent writes one JSON line, the request; the process
 * writes JSON lines. A `read` is answered by a frame: four bytes of length and the bytes, or 0xffffffff and then a frame that
 * holds why not. Credentials travel here and not in arguments or environment, which other processes may read.
 */
export interface PullRequest {
  image: string;
  architecture: string;
  /** Where blobs are kept, shared by all containers. */
  imagesFolder: string;
  /** Where the root goes; must not exist. */
  rootFolder: string;
  /** Name servers; empty: those of the system. */
  dnsServers: readonly string[];
  username?: string;
  password?: string;
  ca?: string;
}

export type PullMessage =
  | { note: string }
  | { progress: PullProgress }
  | { read: { path: string; offset: number; length: number } }
  | { done: PulledImage }
  | { failed: { message: string; diskFull: boolean } };

/** What a pull tells while it goes on: lines for the log, and how far it is. */
export interface PullListener {
  note(text: string): void;
  progress(progress: PullProgress): void;
}

export interface PulledImage {
  /** Digest of the image's manifest. */
  digest: string;
  config: ImageConfig;
  /** Every blob that the image consists of. */
  blobs: string[];
}

export const readFailed = 0xffffffff;
