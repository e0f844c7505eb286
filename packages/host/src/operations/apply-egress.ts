// Puts a machine under the egress policy that its record says. One that does not run gets it when it starts: from its driver,
// before anything of the user runs.
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";

export async function applyEgress(machines: Machines, record: MachineRecord): Promise<void> {
  if (record.phase === "running") await machines.parts.egress.setEgressOf(record.agentHost, record.egress);
}
