/**
 * Measures the present use of one machine, from its cgroup, disk, link and agent. Never wakes a dozing machine nor keeps a machine
 * awake.
 */
import { stat } from "node:fs/promises";
import type { Agents } from "../agent-calls/agents.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Drivers } from "../drivers/drivers.ts";
import type { Machines } from "../machines/machines.ts";
import { imageOf } from "../operations/memory-images.ts";
import { snapshotDisk } from "../drivers/driver.ts";
import type { LinkTraffic } from "../network/traffic.ts";
import type { Sample } from "./sample-history.ts";

/** A sample without CPU share, which needs an earlier sample. */
export type Measured = Omit<Sample, "cpuShare"> & { cpuMs: number };

const blockBytes = 512;
/** The guest is not trusted: a larger number counts as 0. */
const processesMax = 4_194_304;

export interface MeasureParts {
  machines: Machines;
  agents: Agents;
  drivers: Drivers;
}

/** Measures a running machine. Throws if it has ended. */
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

/** The sample of a machine that does not run: only its disk. */
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

/** Allocated bytes of the image, including blocks shared with its template or forks; 0 if it does not exist yet. */
async function allocatedBytes(image: string): Promise<number> {
  const found = await stat(image).catch(() => undefined);
  return (found?.blocks ?? 0) * blockBytes;
}

/** Number of users' processes. The last answer if the machine dozes or is about to; 0 if the agent does not answer. */
async function processesOf({ machines, agents }: MeasureParts, record: MachineRecord): Promise<number> {
  const report = machines.doze.reportOf(record.id);
  if (report !== undefined) return plausible(report.processes);
  // `agents.of` would keep the machine awake.
  const asked = agents.ofDozing(record).getActivity();
  return await asked.then(
    ({ processes }) => plausible(processes),
    () => 0,
  );
}

const plausible = (processes: unknown): number =>
  typeof processes === "number" && Number.isInteger(processes) && processes >= 0 && processes <= processesMax
    ? processes
    : 0;
