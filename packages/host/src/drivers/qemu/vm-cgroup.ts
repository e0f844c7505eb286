// A virtual machine's cgroup, on both hierarchies: made before QEMU starts, which its launcher then joins.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import {
  Cgroup,
  type CgroupLimits,
  cgroupVersion,
  childGroups,
  mibToBytes,
  prepareParent,
  removeGroup,
} from "../cgroup.ts";
import type { VmShape } from "./command-line.ts";

const MOUNT = "/sys/fs/cgroup";
const CONTROLLERS_V1 = ["cpu", "cpuacct", "memory", "pids", "freezer"];
/** What QEMU needs besides the guest's memory: its own, the translation cache under emulation, buffers of disk and network. */
const OVERHEAD_MB = 320;
/** Threads: one for each processor, one for the main loop, up to 64 for the disk. */
const THREADS = 96;

/** Apart from the other runtimes' groups, so that each driver's sweep sees its own only. */
export const vmCgroupRoot = (tag: string): string => `/cloche-${tag}-vm`;
export const vmCgroupPath = (tag: string, id: string): string => `${vmCgroupRoot(tag)}/${id}`;

/** When the last machine has gone. */
export async function removeVmCgroupRoot(tag: string): Promise<void> {
  const root = vmCgroupRoot(tag);
  if ((await childGroups(root)).length === 0) await removeGroup(root);
}

export function vmLimits(shape: VmShape, cpus: number): CgroupLimits {
  return { cpus, memoryBytes: mibToBytes(shape.memoryMb + OVERHEAD_MB), pids: THREADS + shape.vcpus };
}

/** Answers the files that a process joins it by. Repeatable. */
export async function makeVmCgroup(tag: string, id: string, limits: CgroupLimits): Promise<string[]> {
  const path = vmCgroupPath(tag, id);
  await prepareParent(vmCgroupRoot(tag));
  const directories =
    cgroupVersion() === 2 ? [join(MOUNT, path)] : CONTROLLERS_V1.map((name) => join(MOUNT, name, path));
  for (const directory of directories) await mkdir(directory, { recursive: true });
  await new Cgroup(path).limit(limits);
  return directories.map((directory) => join(directory, "cgroup.procs"));
}
