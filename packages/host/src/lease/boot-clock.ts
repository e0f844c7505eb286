/**
 * The clock of leases: time since this computer started, including time that it was suspended. Node's own clocks leave that out.
 */
import { readFileSync } from "node:fs";

/** Milliseconds, in steps of 10. The guard (native/guard) reads the same clock as CLOCK_BOOTTIME. */
export const bootMs = (): number =>
  Math.round(Number.parseFloat(readFileSync("/proc/uptime", "utf8")) * 1_000);
