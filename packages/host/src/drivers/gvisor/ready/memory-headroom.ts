/** Whether the host has memory for machines that are not requested yet. */
import { freemem, totalmem } from "node:os";

/**
 * plenty: more units may be made ahead. enough: units that exist are kept. short: units beyond the fewest are destroyed. The limits
 * are far enough apart that destroying all extra units of the default (`CLOCHE_WARM_POOL_MAX`: a sixth of the memory in warm units,
 * a twentieth in blanks) does not lead back to plenty.
 */
export type MemoryHeadroom = "plenty" | "enough" | "short";

const plenty = 3 / 8;
const enough = 1 / 8;

/** `freemem` is MemAvailable of /proc/meminfo: memory that programs can get without swapping. */
export function memoryHeadroom(available = freemem(), total = totalmem()): MemoryHeadroom {
  const part = available / total;
  if (part >= plenty) return "plenty";
  return part >= enough ? "enough" : "short";
}
