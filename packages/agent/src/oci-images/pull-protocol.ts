import type { PullProgress } from "@cloche/protocol";
import type { ImageConfig } from "./manifest.ts";

/**
 * The protocol between the agent and its pull process (fd 3, a socket pair). The agent writes the request as one JSON line; the process
 * writes JSON lines. A `read` is answered by a frame: four bytes of length and the bytes, or 0xffffffff and a frame with the error.
 * Credentials are sent here, because other processes may read arguments and environment.
 */
export interface PullRequest {
  image: string;
  architecture: string;
  /** Folder of the blobs, shared by all containers. */
  imagesFolder: string;
  /** Folder for the root; must not exist. */
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

/** Receives lines for the log and the progress of a pull. */
export interface PullListener {
  note(text: string): void;
  progress(progress: PullProgress): void;
}

export interface PulledImage {
  /** Digest of the image's manifest. */
  digest: string;
  config: ImageConfig;
  /** All blobs of the image. */
  blobs: string[];
}

export const readFailed = 0xffffffff;
