/**
 * A virtual machine's cgroup, on both hierarchies. It is made before QEMU starts; QEMU's launcher joins it.
 */
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

const mount = "/sys/fs/cgroup";
const controllersV1 = ["cpu", "cpuacct", "memory", "pids", "freezer"];
/** QEMU's memory beside the guest's: its own, the translation cache under emulation, buffers of disk and network. */
const overheadMb = 320;
/** Threads: one for each processor, one for the main loop, up to 64 for the disk. */
const threads = 96;

/** Separate from other runtimes' groups, so that each driver's sweep sees only its own. */
export const vmCgroupRoot = (tag: string): string => `/cloche-${tag}-vm`;
export const vmCgroupPath = (tag: string, id: string): string => `${vmCgroupRoot(tag)}/${id}`;

/** Removes the root if no machine is left. */
export async function removeVmCgroupRoot(tag: string): Promise<void> {
  const root = vmCgroupRoot(tag);
  if ((await childGroups(root)).length === 0) await removeGroup(root);
}

export function vmLimits(shape: VmShape, cpus: number): CgroupLimits {
  return { cpus, memoryBytes: mibToBytes(shape.memoryMb + overheadMb), pids: threads + shape.vcpus };
}

/** Makes the cgroup. Answers the files through which a process joins it. Repeatable. */
export async function makeVmCgroup(tag: string, id: string, limits: CgroupLimits): Promise<string[]> {
  const path = vmCgroupPath(tag, id);
  await prepareParent(vmCgroupRoot(tag));
  const directories =
    cgroupVersion() === 2 ? [join(mount, path)] : controllersV1.map((name) => join(mount, name, path));
  for (const directory of directories) await mkdir(directory, { recursive: true });
  await new Cgroup(path).limit(limits);
  return directories.map((directory) => join(directory, "cgroup.procs"));
}
