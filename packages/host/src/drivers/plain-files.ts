import { readdir } from "node:fs/promises";
import { ImageMismatchError } from "./driver.ts";

/** Throws ImageMismatchError for a link, FIFO or device in a memory image: gVisor and QEMU would follow it or wait. */
export async function requirePlainFiles(dir: string): Promise<void> {
  const entries = await readdir(dir, { withFileTypes: true }).catch(() => []);
  if (entries.some((entry) => !entry.isFile() && !entry.isDirectory()))
    throw new ImageMismatchError("the memory image is damaged: it has something else than files");
}
