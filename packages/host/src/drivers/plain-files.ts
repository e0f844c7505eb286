import { readdir } from "node:fs/promises";
import { ImageMismatchError } from "./driver.ts";

/** Throws ImageMismatchError for a link, FIFO or device in a memory image: gVisor and QEMU would follow it or wait. */
export async function requirePlainFiles(dir: string): Promise<void> {
  const entries = await readdir(dir, { withFileTypes: true }).catch(() => []);
  if (entries.some((entry) => !entry.isFile() && !entry.isDirectory()))
    throw new ImageMismatchError("the memory image is damaged: it has something else than files");
}

/** Whether a value that came with a memory image is a port: it becomes part of the host's rules. */
export const isPort = (value: unknown): boolean =>
  Number.isInteger(value) && (value as number) > 0 && (value as number) <= 65_535;
