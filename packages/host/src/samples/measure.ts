// What one machine uses right now: of its cgroup, its disk, its link and its agent. Nothing here wakes a machine that dozes, or keeps it
// from dozing.
import { stat } from "node:fs/promises";
import type { Agents } from "../agent-calls/agents.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Drivers } from "../drivers/drivers.ts";
import type { Machines } from "../machines/machines.ts";
import { imageOf } from "../operations/memory-images.ts";
import { snapshotDisk } from "../drivers/driver.ts";
import type { LinkTraffic } from "../network/traffic.ts";
import type { Sample } from "./sample-history.ts";

/** A sample without its share: that needs one before it. */
export type Measured = Omit<Sample, "cpuShare"> & { cpuMs: number };

const BLOCK_BYTES = 512;
/** A guest's word is not trusted: more than any machine has are none. */
const PROCESSES_MAX = 4_194_304;

export interface MeasureParts {
  machines: Machines;
  agents: Agents;
  drivers: Drivers;
}

/** Of a machine that runs. Throws where it does not any more. */
export async function measure(
  parts: MeasureParts,
  record: MachineRecord,
  atMs: number,
  traffic: ReadonlyMap<string, LinkTraffic>,
): Promise<Measured> {
  const { machines, drivers } = parts;
  const [{ cpuMs, memoryBytes }, diskBytes, processes] = await Promise.all([
    drivers.of(record).stats(machines.files(record)),
    allocatedBytes(machines.files(record).diskImage),
    processesOf(parts, record),
  ]);
  const { receivedBytes = 0, sentBytes = 0 } = traffic.get(record.agentHost) ?? {};
  return { atMs, cpuMs, memoryBytes, diskBytes, receivedBytes, sentBytes, processes };
}

/** Of one that does not run: its disk alone. */
export async function atRest(
  { machines }: Pick<MeasureParts, "machines">,
  record: MachineRecord,
  atMs: number,
): Promise<Sample> {
  const disk =
    record.phase === "suspended" && record.snapshot !== undefined
      ? snapshotDisk(imageOf({ machines }, record.id))
      : machines.files(record).diskImage;
  const nothing = { cpuShare: 0, memoryBytes: 0, receivedBytes: 0, sentBytes: 0, processes: 0 };
  return { ...nothing, atMs, diskBytes: await allocatedBytes(disk) };
}

/** Of the image, blocks shared with its template or with forks included; 0 where it is not there yet. */
async function allocatedBytes(image: string): Promise<number> {
  const found = await stat(image).catch(() => undefined);
  return (found?.blocks ?? 0) * BLOCK_BYTES;
}

/** Of its users. An agent that does not answer, or is about to doze, is not waited for: what it said last. */
async function processesOf({ machines, agents }: MeasureParts, record: MachineRecord): Promise<number> {
  const said = machines.doze.saidOf(record.id);
  if (said !== undefined) return plausible(said.processes);
  // Not as everybody else asks: that would keep it awake.
  const asked = agents.ofDozing(record).getActivity();
  return await asked.then(
    ({ processes }) => plausible(processes),
    () => 0,
  );
}

const plausible = (processes: unknown): number =>
  typeof processes === "number" && Number.isInteger(processes) && processes >= 0 && processes <= PROCESSES_MAX
    ? processes
    : 0;
