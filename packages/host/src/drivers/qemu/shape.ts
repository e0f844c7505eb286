/**
 * Derives a virtual machine's CPUs and memory from the sandbox's size. Machines of one shape share a template. The shape enters
 * the keys of snapshots (platform.ts): another rule here makes stored ones cold.
 */
import { availableParallelism } from "node:os";
import type { MachineResources } from "../driver.ts";
import type { VmShape } from "./command-line.ts";

/** The guest's kernel and the agent need this much. */
const leastMemoryMb = 256;

/** At most as many CPUs as the host has: more would wait for each other. The cgroup limits a fraction of a CPU. */
export function shapeOf(
  resources: Pick<MachineResources, "cpus" | "memoryMb">,
  hostProcessors = availableParallelism(),
): VmShape {
  const vcpus = Math.min(Math.max(1, Math.ceil(resources.cpus)), hostProcessors);
  return { vcpus, memoryMb: Math.max(leastMemoryMb, Math.ceil(resources.memoryMb / 2) * 2) };
}
