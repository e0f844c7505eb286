/** CPU time of whole services: their process with all children, the cgroups of their machines, and what the benchmark started. */
import { existsSync, readFileSync } from "node:fs";

/** Linux's USER_HZ; the same on every machine that we run on. */
const ticksPerSecond = 100;

/** Milliseconds so far. Figures of processes come in ticks of 10 ms: sums over many samples are exact, single ones are not. */
export function cpuMsOf(services: readonly { pid: number; tag: string }[]): number {
  const children = ticksOf("self", [15, 16]);
  return services.reduce(
    (sum, { pid, tag }) => sum + ticksOf(String(pid), [13, 14, 15, 16]) + machinesMs(tag),
    children,
  );
}

/** `fields` count from 0, after proc(5): 13 and 14 are a process's own, 15 and 16 of its children that have ended. */
function ticksOf(pid: string, fields: readonly number[]): number {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const words = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const ticks = fields.reduce((sum, field) => sum + Number(words[field - 2] ?? 0), 0);
    return (ticks * 1_000) / ticksPerSecond;
  } catch {
    return 0; // between a stop and a start
  }
}

function machinesMs(tag: string): number {
  const v1 = `/sys/fs/cgroup/cpuacct/cloche-${tag}/cpuacct.usage`;
  if (existsSync(v1)) return Number(readFileSync(v1, "utf8")) / 1e6;
  const v2 = `/sys/fs/cgroup/cloche-${tag}/cpu.stat`;
  if (!existsSync(v2)) return 0;
  return Number(/^usage_usec (\d+)/m.exec(readFileSync(v2, "utf8"))?.[1] ?? 0) / 1_000;
}
