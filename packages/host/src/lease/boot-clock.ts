// Time since this computer started, which goes on while it is suspended: what a lease is measured by. Node's own clocks stop then.
import { readFileSync } from "node:fs";

/** Milliseconds, in steps of 10. The guard (native/guard) reads the same clock as CLOCK_BOOTTIME. */
export const bootMs = (): number =>
  Math.round(Number.parseFloat(readFileSync("/proc/uptime", "utf8")) * 1_000);
