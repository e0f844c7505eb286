/**
 * The host's record of one machine: <pool>/machines/<id>/machine.json, beside the disk that it describes, so that both
 * are removed and restored together. Changes that need not survive a power cut go to a note on a tmpfs instead: a file
 * replaced on the pool without fsync can be empty after a power cut (XFS writes the name before the content).
 */
import { mkdir, readdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import {
  createDurably,
  KeyedLog,
  readJsonFile,
  removeEmptyFolder,
  syncDirectory,
  writeDurably,
} from "@cloche/base";
import type { MachineFiles, MachineResources, Runtime } from "../drivers/driver.ts";
import type { StoredImageNote } from "./stored-image-note.ts";
import type { MachinePhaseName } from "./phases.ts";

export interface MachineSpecRecord extends MachineResources {
  id: string;
  teamId: string;
  name: string;
  runtime: Runtime;
  template: string;
  env: Record<string, string>;
  /** The checkpoint that its disk was cloned from; empty: cloned from the template. */
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
  /** File name of the disk image in the machine's directory; a restore makes a new one. */
  disk: string;
  /** How many disk images were made; numbers the next one. */
  disks: number;
  /** The secret that the agent accepts on its control routes. */
  controlSecret: string;
  /** Set before an Assign that replaces the secret: after a crash the agent may accept either. */
  nextControlSecret?: string;
  agentHost: string;
  agentPort: number;
  /** VM drivers: the name of the disk's block device in the guest. */
  blockDevice?: string;
  /** Name of the directory, in the machine's directory, with memory and disk of a suspended machine. */
  snapshot?: string;
  /** The secret that the agent in that image accepts. */
  snapshotSecret?: string;
  /** Only for a suspended machine in a cluster whose image is in storage; removed when it runs. */
  stored?: StoredImageNote;
  /** A restore in place that is under way. Until it is committed, `disk` stays the machine's disk. */
  restore?: RestoreNote;
}

export interface RestoreNote {
  checkpointId: string;
  /** File name of the image that becomes the disk. */
  disk: string;
  /** Services to start: those that ran at checkpoint time, dependencies first. */
  services: string[];
  /** Services that ran when the restore began; started again if it fails. */
  ran: string[];
}

export const filesOf = (poolDir: string, record: { id: string; disk: string }): MachineFiles => {
  const dir = machineDir(poolDir, record.id);
  return { id: record.id, dir, diskImage: join(dir, record.disk) };
};

export const machineDir = (poolDir: string, id: string): string => join(poolDir, "machines", id);

const file = "machine.json";

/**
 * Reads and writes the records of all machines of one pool. A note is never older than the file: a crash of the service
 * loses nothing; a power cut loses changes that were not durable. Calls for the same machine come one at a time.
 */
export class MachineRecordStore {
  readonly #poolDir: string;
  readonly #notesPath: string;
  readonly #notes: KeyedLog;

  /** `runDir`: on a tmpfs. */
  constructor(poolDir: string, runDir: string) {
    this.#poolDir = poolDir;
    this.#notesPath = join(runDir, "machines", "records");
    this.#notes = new KeyedLog(this.#notesPath);
  }

  /**
   * Loads every record. `strays`: ids of directories without a record (a create cut off before its first write). Call it
   * before all other methods.
   */
  async load(): Promise<{ records: MachineRecord[]; strays: string[] }> {
    const root = join(this.#poolDir, "machines");
    await mkdir(root, { recursive: true, mode: 0o700 });
    this.#notes.open();
    const records: MachineRecord[] = [];
    const strays: string[] = [];
    const ids = await readdir(root);
    for (const id of ids) {
      const note = this.#notes.get(id);
      const record = (
        note === undefined ? await readJsonFile(this.#path(id)).catch(() => undefined) : JSON.parse(note)
      ) as MachineRecord | undefined;
      if (record?.version === 1 && record.id === id) records.push(record);
      else strays.push(id);
    }
    for (const [id] of this.#notes.entries()) if (!ids.includes(id)) this.#notes.delete(id);
    return { records, strays };
  }

  /** `durable`: survives a power cut too. Otherwise it survives only a crash of the service. */
  async save(record: MachineRecord, options: { durable: boolean }): Promise<void> {
    const { id } = record;
    const before = this.#notes.get(id);
    const text = JSON.stringify(record);
    this.#notes.set(id, text);
    if (!options.durable) return;
    try {
      await this.#write(id, text);
    } catch (error) {
      if (before === undefined) this.#notes.delete(id);
      else this.#notes.set(id, before);
      throw error;
    }
    if (this.#notes.get(id) === text) this.#notes.delete(id);
  }

  async makeDirectory(id: string): Promise<void> {
    await mkdir(machineDir(this.#poolDir, id), { recursive: true, mode: 0o700 });
  }

  async remove(id: string): Promise<void> {
    await rm(machineDir(this.#poolDir, id), { recursive: true, force: true });
    this.#notes.delete(id);
    await syncDirectory(join(this.#poolDir, "machines"));
  }

  /** Writes all notes to the disk and removes them. */
  async close(): Promise<void> {
    for (const [id, text] of this.#notes.entries()) {
      await this.#write(id, text);
      this.#notes.delete(id);
    }
    this.#notes.close();
    await removeEmptyFolder(dirname(this.#notesPath));
  }

  /** The first write needs one fsync instead of two: a file torn by a power cut counts as no record. */
  async #write(id: string, text: string): Promise<void> {
    const path = this.#path(id);
    try {
      await createDurably(path, text);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      await writeDurably(path, text);
    }
  }

  #path(id: string): string {
    return join(machineDir(this.#poolDir, id), file);
  }
}
