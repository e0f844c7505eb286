/**
 * The parts of a host that functions on a machine use. Each function names its own: `Parts<"machines" | "drivers">`.
 */
import type { Clock, Log } from "@cloche/base";
import type { Agents } from "../agent-calls/agents.ts";
import type { Drivers } from "../drivers/drivers.ts";
import type { Machines } from "../machines/machines.ts";
import type { OperationQueue } from "../machines/operation-queue.ts";
import type { EgressControl } from "../network/egress-control.ts";
import type { Native } from "../sys/native.ts";
import type { HostJournal } from "./journal.ts";

export interface MachineParts {
  machines: Machines;
  queue: OperationQueue;
  agents: Agents;
  drivers: Drivers;
  journal: HostJournal;
  /** Directory of the reflink pool. */
  poolDir: string;
  native: Native;
  egress: EgressControl;
  clock: Clock;
  log: Log;
}

export type Parts<Key extends keyof MachineParts> = Pick<MachineParts, Key>;
