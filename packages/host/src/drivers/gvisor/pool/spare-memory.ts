// Whether the host has memory for machines that nobody has asked for yet.
import { freemem, totalmem } from "node:os";

/**
 * plenty: more may be made ahead; enough: what is there stays; short: what is beyond the least is given back. Far enough apart
 * that giving back what may be kept by default (`CLOCHE_WARM_POOL_MAX`: a sixth of the memory in warm ones, a twentieth in blanks)
 * does not make it plenty again.
 */
export type SpareMemory = "plenty" | "enough" | "short";

const PLENTY = 3 / 8;
const ENOUGH = 1 / 8;

/** `freemem` is what programs can have without swapping: MemAvailable of /proc/meminfo. */
export function spareMemory(available = freemem(), total = totalmem()): SpareMemory {
  const part = available / total;
  if (part >= PLENTY) return "plenty";
  return part >= ENOUGH ? "enough" : "short";
}
