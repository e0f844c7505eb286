/** Memory and CPU of processes as the kernel counts them. Processes that end meanwhile count as nothing. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { readJsonFile } from "@cloche/base";
import { instanceTag } from "../packages/host/src/sys/instance.ts";
import type { Lab } from "./lab.ts";

const ticksPerSecond = 100;

const readOrNothing = (path: string): string => {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return "";
  }
};

/**
 * Proportional set size: a page that n address spaces share counts 1/n in each. gVisor's stubs are processes that share one
 * address space, which is counted once: it shows in all of them with the same maps.
 */
export function pssMb(pids: readonly number[]): number {
  const addressSpaces = new Map<string, number>();
  for (const pid of pids) {
    const kilobytes = /^Pss:\s+(\d+) kB$/m.exec(readOrNothing(`/proc/${pid}/smaps_rollup`))?.[1];
    if (kilobytes !== undefined) addressSpaces.set(readOrNothing(`/proc/${pid}/maps`), Number(kilobytes));
  }
  return [...addressSpaces.values()].reduce((sum, kilobytes) => sum + kilobytes, 0) / 1024;
}

/** CPU that they and their ended children have used, in seconds. */
export const cpuSeconds = (pids: readonly number[]): number =>
  pids
    .map((pid) => {
      const stat = readOrNothing(`/proc/${pid}/stat`);
      const [user, system, childUser, childSystem] = stat
        .slice(stat.lastIndexOf(")") + 2)
        .split(" ")
        .slice(11, 15)
        .map(Number);
      return ((user ?? 0) + (system ?? 0) + (childUser ?? 0) + (childSystem ?? 0)) / ticksPerSecond;
    })
    .reduce((sum, seconds) => sum + seconds, 0);

/** Processes whose command line names `text`, and all their descendants. */
export function processTrees(text: string): number[] {
  const parents = new Map<number, number>();
  const found = new Set<number>();
  for (const name of readdirSync("/proc")) {
    const pid = Number(name);
    if (!Number.isInteger(pid)) continue;
    const stat = readOrNothing(`/proc/${pid}/stat`);
    parents.set(pid, Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]));
    if (readOrNothing(`/proc/${pid}/cmdline`).includes(text) && pid !== process.pid) found.add(pid);
  }
  for (let before = -1; found.size > before; ) {
    before = found.size;
    for (const [pid, parent] of parents) if (found.has(parent)) found.add(pid);
  }
  return [...found];
}

/** Every process that a sandbox on gVisor costs the host, by the cgroup of its unit. */
export async function sandboxProcesses(lab: Lab, sandboxId: string): Promise<number[]> {
  const tag = instanceTag(lab.service.home);
  const units = join("/run", `cloche-${tag}`, "gvisor", "units");
  for (const name of readdirSync(units)) {
    const unit = (await readJsonFile(join(units, name, "unit.json"))) as { machineId?: string } | undefined;
    if (unit?.machineId !== sandboxId) continue;
    const group = `cloche-${tag}/${name}`;
    const lists = [`/sys/fs/cgroup/memory/${group}/cgroup.procs`, `/sys/fs/cgroup/${group}/cgroup.procs`];
    return lists.flatMap((path) => readOrNothing(path).split("\n").filter(Boolean).map(Number));
  }
  throw new Error(`no unit of ${sandboxId}`);
}

/** Memory that the kernel could still give to programs, in MiB. */
export const availableMb = (): number =>
  Number(/^MemAvailable:\s+(\d+) kB$/m.exec(readFileSync("/proc/meminfo", "latin1"))?.[1]) / 1024;
