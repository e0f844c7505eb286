import type { PackReference } from "../checkpoint/manifest.ts";

/** What StoredImage of host.proto says. */
export interface StoredImageNote {
  key: string;
  /** Empty: the disk alone. */
  cpuClass: string;
  /** Of the packs that were written for it. */
  bytes: number;
  packs: PackReference[];
}
