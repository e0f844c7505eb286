// What everything of one QEMU driver shares.
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
  /** Absent: never. */
  readonly standstill?: Standstill;
  /** How long a guest may take until its agent answers: cold, and out of a snapshot. */
  readonly bootTimeoutMs: number;
  readonly restoreTimeoutMs: number;
}
