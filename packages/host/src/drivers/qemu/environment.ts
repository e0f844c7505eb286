/** Shared by all parts of one QEMU driver. */
import type { Log } from "@cloche/base";
import type { Native } from "../../sys/native.ts";
import type { Standstill } from "../driver.ts";
import type { NetworkSlots } from "../network-slots.ts";
import type { VmPlatform } from "./platform.ts";

export interface VmEnvironment {
  /** Instance tag (sys/instance.ts): marks processes and names cgroups. */
  readonly tag: string;
  readonly platform: VmPlatform;
  readonly network: NetworkSlots;
  readonly native: Native;
  readonly agentPort: number;
  readonly log: Log;
  /** Absent: machines are never frozen from outside. */
  readonly standstill?: Standstill;
  /** Time for a guest's agent to answer, after a cold boot and after a restore. */
  readonly bootTimeoutMs: number;
  readonly restoreTimeoutMs: number;
}
