import { execFile } from "node:child_process";
import { closeSync, mkdirSync, openSync, readFileSync, readSync } from "node:fs";
import { basename } from "node:path";
import { promisify } from "node:util";
import { ClocheError } from "@cloche/protocol";

const run = promisify(execFile);

const superblockAt = 1_024;
const superblockBytes = 1_024;
const sectorBytes = 512;

/** Mounts a VM's disk (guest.proto, block_device). On gVisor the host mounts it from outside and nothing here is used. */
export async function mountDisk(device: string, diskPath: string): Promise<void> {
  if (!/^\/dev\/[a-z0-9/]+$/i.test(device)) {
    throw new ClocheError("invalid_argument", "blockDevice must be a path under /dev");
  }
  mkdirSync(diskPath, { recursive: true });
  try {
    await run("mount", ["-t", "ext4", "-o", "noatime", device, diskPath], { timeout: 120_000 });
  } catch (error) {
    throw new ClocheError(
      "failed_precondition",
      "the disk cannot be mounted: its file system is damaged; create a sandbox from an earlier checkpoint",
      { cause: error },
    );
  }
}

/**
 * Grows the mounted file system to the size of its device. The host grows only the device and never reads the file system, because one
 * written by a guest may be hostile. Does nothing if the device has no more room.
 */
export async function growDisk(guestProgram: string, device: string, diskPath: string): Promise<void> {
  if (fileSystemBytes(device) >= deviceBytes(device)) return;
  try {
    await run(guestProgram, ["grow-disk", diskPath, device], { timeout: 120_000 });
  } catch (error) {
    throw new ClocheError(
      "failed_precondition",
      "the disk could not be made larger: its file system is damaged; leave disk_mb at the size that it has",
      { cause: error },
    );
  }
}

/** Size from the superblock: the number of blocks (64 bits in two halves), and the block size as a power of 2 times 1 KiB. */
function fileSystemBytes(device: string): number {
  const superblock = Buffer.alloc(superblockBytes);
  const fd = openSync(device, "r");
  try {
    readSync(fd, superblock, 0, superblockBytes, superblockAt);
  } finally {
    closeSync(fd);
  }
  const blocks = superblock.readUInt32LE(0x4) + superblock.readUInt32LE(0x150) * 2 ** 32;
  return blocks * 1_024 * 2 ** superblock.readUInt32LE(0x18);
}

const deviceBytes = (device: string): number =>
  Number(readFileSync(`/sys/class/block/${basename(device)}/size`, "utf8")) * sectorBytes;

const unmountAttempts = 40;

/** Tries again for a moment: the kernel lets go of a disk shortly after the end of the last process that used it. */
export async function unmountDisk(diskPath: string): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      await command("umount", [diskPath]);
      return;
    } catch (error) {
      if (attempt === unmountAttempts) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

/** Sets a VM's clock; `guestProgram` is the native program, `monotonicMs` the monotonic clock at `wallClockMs`. */
export const setClock = (guestProgram: string, wallClockMs: number, monotonicMs: number): Promise<void> =>
  command(guestProgram, ["set-clock", (wallClockMs - monotonicMs).toFixed(3)]);

async function command(program: string, args: string[]): Promise<void> {
  try {
    await run(program, args, { timeout: 30_000 });
  } catch (error) {
    throw new ClocheError("internal", `${program} failed in the machine`, { cause: error });
  }
}
