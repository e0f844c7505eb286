/**
 * Applies the egress policy of a machine's record to the running machine. A machine that does not run gets the policy from its
 * driver when it starts, before any program of the user runs.
 */
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Parts } from "./parts.ts";

export async function applyEgress({ egress }: Parts<"egress">, record: MachineRecord): Promise<void> {
  if (record.phase === "running") await egress.setEgressOf(record.agentHost, record.egress);
}
