/** The record of one virtual machine, <dir>/vm.json: enough to find the machine again and to remove it. */
import { createHash } from "node:crypto";
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile, writeDurably } from "@cloche/base";
import { isAlive, type ProcessIdentity } from "../process-identity.ts";
import type { VmShape } from "./command-line.ts";
import type { SnapshotManifest } from "./snapshot-files.ts";

export interface VmRecord {
  readonly id: string;
  readonly shape: VmShape;
  readonly cpus: number;
  /** Unprivileged user that its QEMU runs as. */
  readonly uid: number;
  readonly bootstrapSecret?: string;
  /** Port of its agent. */
  readonly agentPort: number;
  /** Keys of the parts that it, or its template, booted with. */
  readonly bootedFrom: SnapshotManifest["bootedFrom"];
  /** Network slot; absent until one is leased. */
  slot?: number;
  process?: ProcessIdentity;
  /** Id of the host's boot in which the process runs. */
  bootId?: string;
  /** Number of disks since QEMU started; the last one is attached (command-line.ts, diskOf). */
  disks: number;
}

const firstUid = 0x60000000;
const uids = 0x01000000;

/** A user id for each machine, always the same. No account of the host uses this range. */
export function vmUid(id: string): number {
  return firstUid + (createHash("sha256").update(id).digest().readUInt32BE(0) % uids);
}

/** The machine's directory that its QEMU sees as /vm. */
export const vmDirectory = (dir: string): string => join(dir, "vm");
const recordPath = (dir: string): string => join(dir, "vm.json");

export function saveVmRecord(dir: string, record: VmRecord): Promise<void> {
  return writeDurably(recordPath(dir), JSON.stringify(record));
}

export async function readVmRecord(dir: string): Promise<VmRecord | undefined> {
  return (await readJsonFile(recordPath(dir))) as VmRecord | undefined;
}

export async function removeVmFiles(dir: string): Promise<void> {
  await rm(vmDirectory(dir), { recursive: true, force: true });
  await rm(recordPath(dir), { force: true });
}

export async function hostBootId(): Promise<string> {
  return (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
}

/** Whether the recorded process still runs. */
export async function recordedProcessLives(record: VmRecord): Promise<boolean> {
  return (
    record.process !== undefined && record.bootId === (await hostBootId()) && (await isAlive(record.process))
  );
}
