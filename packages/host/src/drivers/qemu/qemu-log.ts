/**
 * What QEMU wrote to its standard output and error: <dir>/qemu.log, to which it only appends. A guest that breaks the rules of its
 * devices makes QEMU write a line each time, without end.
 */
import { open, stat, truncate } from "node:fs/promises";
import { join } from "node:path";
import { vmFiles } from "./command-line.ts";

const bytesMax = 1024 * 1024;
const tailBytes = 4_096;

export class QemuLog {
  readonly #path: string;

  constructor(vmDirectory: string) {
    this.#path = join(vmDirectory, vmFiles.log);
  }

  /** Empties the log if it has grown beyond what anybody reads. Harmless if there is none. */
  async shorten(): Promise<void> {
    const found = await stat(this.#path).catch(() => undefined);
    if (found !== undefined && found.size > bytesMax) await truncate(this.#path).catch(() => undefined);
  }

  /** The end of the log; "" if there is none. */
  async tail(): Promise<string> {
    try {
      await using log = await open(this.#path);
      const { size } = await log.stat();
      const { buffer, bytesRead } = await log.read(
        Buffer.alloc(tailBytes),
        0,
        tailBytes,
        Math.max(0, size - tailBytes),
      );
      return buffer.toString("utf8", 0, bytesRead);
    } catch {
      return "";
    }
  }
}
