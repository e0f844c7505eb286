import type { PackReference } from "../checkpoint/manifest.ts";

/** The content of StoredImage of host.proto. */
export interface StoredImageNote {
  key: string;
  /** Empty: only the disk is stored. */
  cpuClass: string;
  /** Size of the packs written for this image. */
  bytes: number;
  packs: PackReference[];
}
