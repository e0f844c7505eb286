// Disks of units that are kept ready: `<pool>/ready/<unit>.ext4`. One is a machine's own from the moment that machine claims the
// unit; those of an earlier service are removed, for its units are gone.
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";

const folder = (poolDir: string): string => join(poolDir, "ready");

export const readyDisk = (poolDir: string, unit: string): string => join(folder(poolDir), `${unit}.ext4`);

/** Where the disk of that unit is to be. */
export async function makeRoomForReadyDisk(poolDir: string, unit: string): Promise<string> {
  await mkdir(folder(poolDir), { recursive: true, mode: 0o700 });
  return readyDisk(poolDir, unit);
}

export const sweepReadyDisks = (poolDir: string): Promise<void> =>
  rm(folder(poolDir), { recursive: true, force: true });
