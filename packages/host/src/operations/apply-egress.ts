// Puts a machine under the egress policy that its record says. One that does not run gets it when it starts: from its driver,
// before anything of the user runs.
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Parts } from "./parts.ts";

export async function applyEgress({ egress }: Parts<"egress">, record: MachineRecord): Promise<void> {
  if (record.phase === "running") await egress.setEgressOf(record.agentHost, record.egress);
}
