// What the host knows of one machine, on disk: <pool>/machines/<id>/machine.json. It lies beside the disk that it
// describes, so that both go, and come back, together.
import { mkdir, readdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile, syncDirectory, writeDurably } from "@cloche/base";
import type { MachineFiles, MachineResources, Runtime } from "../machine/driver.ts";

export const machinePhases = [
  "starting",
  "running",
  "suspending",
  "suspended",
  "resuming",
  "stopped",
  "failed",
  "destroying",
] as const;
export type MachinePhaseName = (typeof machinePhases)[number];

export interface MachineSpecRecord extends MachineResources {
  id: string;
  teamId: string;
  name: string;
  runtime: Runtime;
  template: string;
  env: Record<string, string>;
  /** The checkpoint its disk was seeded from; empty: from the template. */
  checkpointId: string;
  /** 0: never reported idle. */
  idleSuspendSeconds: number;
}

export interface MachineRecord extends MachineSpecRecord {
  version: 1;
  phase: MachinePhaseName;
  /** Grows with every change of phase or address. */
  epoch: number;
  /** When it last began to run, Unix milliseconds. */
  runningSinceMs?: number;
  /** Public wording; empty when nothing is wrong. */
  errorMessage: string;
  /** File name of the disk image in the machine's directory; a restore brings a new one. */
  disk: string;
  /** Grows with every disk image made. */
  disks: number;
  /** What the agent accepts on its control routes. */
  controlSecret: string;
  /** Set before an Assign that replaces it: after a crash the agent may know either. */
  nextControlSecret?: string;
  agentHost: string;
  agentPort: number;
  /** VM drivers: the guest's name of the disk. */
  blockDevice?: string;
  /** Directory name, in the machine's directory, of the memory and disk of a suspended machine. */
  snapshot?: string;
  /** What the agent in that image accepts. */
  snapshotSecret?: string;
  /** A restore in place that was under way: the image that counts until it is done is `disk`. */
  restore?: RestoreNote;
}

export interface RestoreNote {
  checkpointId: string;
  /** Image that is to become the disk. */
  disk: string;
  /** Services to be started: those that ran at checkpoint time, needs first. */
  services: string[];
  /** Services that ran when it began: what a restore that fails starts again. */
  ran: string[];
}

export const filesOf = (poolDir: string, record: { id: string; disk: string }): MachineFiles => {
  const dir = machineDir(poolDir, record.id);
  return { id: record.id, dir, diskImage: join(dir, record.disk) };
};

export const machineDir = (poolDir: string, id: string): string => join(poolDir, "machines", id);

const FILE = "machine.json";

/** Reads and writes the records of all machines of one pool. */
export class MachineRecordStore {
  readonly #poolDir: string;

  constructor(poolDir: string) {
    this.#poolDir = poolDir;
  }

  /** Every machine that has a record; what has none (a create cut off before its first write) is answered apart. */
  async load(): Promise<{ records: MachineRecord[]; strays: string[] }> {
    const root = join(this.#poolDir, "machines");
    await mkdir(root, { recursive: true, mode: 0o700 });
    const records: MachineRecord[] = [];
    const strays: string[] = [];
    for (const id of await readdir(root)) {
      const record = (await readJsonFile(join(root, id, FILE)).catch(() => undefined)) as
        | MachineRecord
        | undefined;
      if (record?.version === 1 && record.id === id) records.push(record);
      else strays.push(id);
    }
    return { records, strays };
  }

  /** `durable`: survives a power cut too, not only a crash of the service. */
  async save(record: MachineRecord, options: { durable: boolean }): Promise<void> {
    const path = join(machineDir(this.#poolDir, record.id), FILE);
    const text = JSON.stringify(record);
    if (options.durable) return writeDurably(path, text);
    await writeFile(`${path}.new`, text, { mode: 0o600 });
    await rename(`${path}.new`, path);
  }

  async makeDirectory(id: string): Promise<void> {
    await mkdir(machineDir(this.#poolDir, id), { recursive: true, mode: 0o700 });
  }

  async remove(id: string): Promise<void> {
    await rm(machineDir(this.#poolDir, id), { recursive: true, force: true });
    await syncDirectory(join(this.#poolDir, "machines"));
  }
}
