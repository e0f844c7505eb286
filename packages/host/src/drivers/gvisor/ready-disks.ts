/**
 * Disks of ready units: `<pool>/ready/<unit>.ext4`. When a machine claims the unit, the disk becomes the machine's. Disks of an earlier
 * service are removed, because its ready units are gone.
 */
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";

const folder = (poolDir: string): string => join(poolDir, "ready");

export const readyDisk = (poolDir: string, unit: string): string => join(folder(poolDir), `${unit}.ext4`);

/** Answers the path for that unit's disk; makes the folder. */
export async function makeRoomForReadyDisk(poolDir: string, unit: string): Promise<string> {
  await mkdir(folder(poolDir), { recursive: true, mode: 0o700 });
  return readyDisk(poolDir, unit);
}

export const sweepReadyDisks = (poolDir: string): Promise<void> =>
  rm(folder(poolDir), { recursive: true, force: true });
