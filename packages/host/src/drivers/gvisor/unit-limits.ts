/** Limits of a unit's cgroup, from the size requested for its machine. */
import { availableParallelism } from "node:os";
import { defaults } from "@cloche/protocol";
import { type CgroupLimits, mibToBytes } from "../cgroup.ts";
import type { Shape } from "./tuning/recent-shapes.ts";

/** Host tasks of sentry and stubs: far above what the limit inside allows, since reaching it kills the sandbox. */
const pidsBackstop = 32_768;
/** Memory for sentry, gofer and agent, beside the user's. */
const overheadBytes = mibToBytes(128);
/** Memory that one CPU may fill before the agent's memory guard kills (native/guest/memory.c). Above our limit the whole sandbox ends. */
const guardBytesPerCpu = mibToBytes(256);

/** As the agent sets the limit (native/guest/guest.c): one process for each MiB, within these bounds. */
const processesLeast = 256;
const processesMost = 4_096;

/** Shape of a unit that never becomes a machine. */
export const leastShape: Shape = { cpus: 1, memoryMb: 256 };

/** Limits that the sentry is told. */
export const limitsOf = ({ cpus, memoryMb }: Shape): CgroupLimits => ({
  cpus,
  memoryBytes: mibToBytes(memoryMb),
  pids: pidsBackstop,
});

/** How many processes and threads users may run in the machine. */
export const processLimit = ({ memoryBytes }: CgroupLimits): number =>
  Math.min(processesMost, Math.max(processesLeast, Math.floor(memoryBytes / mibToBytes(1))));

/** Limits of the cgroup: the user's, plus memory that the sentry itself needs. */
export function withHeadroom(limits: CgroupLimits): CgroupLimits {
  const headroom = overheadBytes + Math.round(guardBytesPerCpu * Math.max(1, limits.cpus));
  return { ...limits, memoryBytes: limits.memoryBytes + headroom };
}

export const isDefaultShape = ({ cpus, memoryMb }: Shape): boolean =>
  cpus === defaults.cpus && memoryMb === defaults.memoryMb;

/**
 * Machines made without a blank unit at once. A hundred sentries started at once took 1.6 s of two processors each instead of 0.6,
 * and some answered too late.
 */
const madeAtOncePerCpu = 2;
/**
 * Ready machines given out at once. A hundred thawed at once slowed each other down for 30 s, because an idle sentry takes 4 % of a
 * processor. One after the other, with the requests that follow, they took 12 s.
 */
const claimedAtOncePerCpu = 0.5;
/**
 * Made ahead for the next burst at once, with a low weight of CPU. One after the other took the time of the waits too, and a burst of 50
 * that finds its machines ready takes a third of the time.
 */
const madeAheadAtOncePerCpu = 1;

export const madeAtOnce = (): number => availableParallelism() * madeAtOncePerCpu;
export const madeAheadAtOnce = (): number => availableParallelism() * madeAheadAtOncePerCpu;
export const claimedAtOnce = (): number => Math.ceil(availableParallelism() * claimedAtOncePerCpu);
