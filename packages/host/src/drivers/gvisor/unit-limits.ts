// What a unit's cgroup allows, by what was asked for its machine.
import { availableParallelism } from "node:os";
import { defaults } from "@cloche/protocol";
import { type CgroupLimits, mibToBytes } from "../cgroup.ts";
import type { Shape } from "./tuning/recent-shapes.ts";

/** Host tasks of sentry and stubs: far above what the limit inside allows, since reaching it kills the sandbox. */
const PIDS_BACKSTOP = 32_768;
/** Sentry, gofer and agent use this much beside what the user asked for. */
const OVERHEAD_BYTES = mibToBytes(128);
/** What one CPU may fill before the agent's memory guard has looked and killed (native/guest/memory.c): past our limit the whole sandbox ends. */
const GUARD_BYTES_PER_CPU = mibToBytes(256);

/** As the agent sets it (native/guest/guest.c): one for each MiB, within bounds. */
const PROCESSES_LEAST = 256;
const PROCESSES_MOST = 4_096;

/** Of a unit in which no machine is to run. */
export const leastShape: Shape = { cpus: 1, memoryMb: 256 };

/** What the sentry is told. */
export const limitsOf = ({ cpus, memoryMb }: Shape): CgroupLimits => ({
  cpus,
  memoryBytes: mibToBytes(memoryMb),
  pids: PIDS_BACKSTOP,
});

/** How many processes and threads of users may run in it. */
export const processLimit = ({ memoryBytes }: CgroupLimits): number =>
  Math.min(PROCESSES_MOST, Math.max(PROCESSES_LEAST, Math.floor(memoryBytes / mibToBytes(1))));

/** What the cgroup has: what the sentry needs itself comes on top. */
export function withHeadroom(limits: CgroupLimits): CgroupLimits {
  const headroom = OVERHEAD_BYTES + Math.round(GUARD_BYTES_PER_CPU * Math.max(1, limits.cpus));
  return { ...limits, memoryBytes: limits.memoryBytes + headroom };
}

export const isDefaultShape = ({ cpus, memoryMb }: Shape): boolean =>
  cpus === defaults.cpus && memoryMb === defaults.memoryMb;

/**
 * Machines that have no blank to begin with: a hundred sentries that started at once took 1.6 s of two processors each instead of
 * 0.6, and some answered too late.
 */
const MADE_AT_ONCE_PER_CPU = 2;
/**
 * Machines kept ready that are given out: a hundred that went on at once stood in each other's way for 30 s, for an idle sentry
 * takes 4 % of a processor; one after the other, with the requests that follow, 12 s.
 */
const CLAIMED_AT_ONCE_PER_CPU = 0.5;

export const madeAtOnce = (): number => availableParallelism() * MADE_AT_ONCE_PER_CPU;
export const claimedAtOnce = (): number => Math.ceil(availableParallelism() * CLAIMED_AT_ONCE_PER_CPU);
