// What is written down of one virtual machine, in <dir>/vm.json: enough to find it again and to take it away.
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
  /** Unprivileged user of its QEMU. */
  readonly uid: number;
  readonly bootstrapSecret?: string;
  /** Where its agent listens. Absent: the port of the first release. */
  readonly agentPort?: number;
  /** What it booted with, once. */
  readonly bootedFrom: SnapshotManifest["bootedFrom"];
  /** Network slot; absent until it has one. */
  slot?: number;
  process?: ProcessIdentity;
  /** The host's boot that the process belongs to. */
  bootId?: string;
  /** How many disks it has had since QEMU started; the last one is attached (command-line.ts, diskOf). */
  disks: number;
}

const FIRST_UID = 0x60000000;
const UIDS = 0x01000000;

/** A user of its own for each machine, the same in all its lives; no account of the host has such numbers. */
export function vmUid(id: string): number {
  return FIRST_UID + (createHash("sha256").update(id).digest().readUInt32BE(0) % UIDS);
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
