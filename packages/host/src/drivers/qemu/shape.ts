// From what a sandbox was promised to the processors and memory of its virtual machine. Machines of one shape share a template.
import { availableParallelism } from "node:os";
import type { MachineResources } from "../driver.ts";
import type { VmShape } from "./command-line.ts";

/** A kernel of its own and the agent need this much. */
const LEAST_MEMORY_MB = 256;

/** More processors than the host has would only make them wait for each other. A fraction is a limit on time (cgroup). */
export function shapeOf(
  resources: Pick<MachineResources, "cpus" | "memoryMb">,
  hostProcessors = availableParallelism(),
): VmShape {
  const vcpus = Math.min(Math.max(1, Math.ceil(resources.cpus)), hostProcessors);
  return { vcpus, memoryMb: Math.max(LEAST_MEMORY_MB, Math.ceil(resources.memoryMb / 2) * 2) };
}
