/**
 * Disk images of sandboxes: ext4 in a file on the reflink pool, loop-mounted on the host while a machine runs.
 * Owns the mounts and loop devices that it makes. The caller chooses the paths of image files (always on the pool).
 *
 *   (no file) ──clone──▶ detached ──attach──▶ attached
 *                           ▲  │                  │
 *                         grow ◀─────detach────┘
 *
 * Called by machine drivers and the host service. Every operation can be repeated; an operation that throws is undone.
 * Files, mounts and loop devices survive a crash. To attach a disk again at the same place succeeds.
 */
import { stat, truncate } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { CommandError, run } from "@cloche/base/run";
import { ClocheError } from "@cloche/protocol";
import { type Native, NativeError } from "../sys/native.ts";

const msNosuid = 2;
const msNodev = 4;
const msNoatime = 1024;
/**
 * For the host's safety: device nodes and setuid programs of the guest do not work on the host, and a damaged file system becomes
 * read-only instead of panicking the kernel, whatever its superblock asks for. For density: no atime writes and no background
 * zeroing of inode tables, which would give each clone blocks of its own.
 */
const mountFlags = msNosuid | msNodev | msNoatime;
const ext4Options = "errors=remount-ro,noinit_itable";
/** Errors of ext4 for a damaged file system; the mount's options are always the same and valid. */
const damage = new Set(["EUCLEAN", "EINVAL", "EBADMSG", "EIO", "EFBIG"]);
const detachPollMs = 10;
const detachPatienceMs = 3_000;
const offlineDeadlineMs = 10 * 60_000;
const bytesPerMib = 1024 * 1024;

export interface AttachedDisk {
  readonly image: string;
  readonly mountPoint: string;
  /** For example /dev/loop3. */
  readonly device: string;
}

/** A disk could not be attached. The fault is the disk's, never the machine's or template's. */
export class DiskFault extends ClocheError {}

export interface DiskBlocks {
  /** Bytes that the image occupies, including shared ones. */
  readonly allocatedBytes: number;
  /** Of these, bytes that no other image shares; deleting the image frees them. */
  readonly exclusiveBytes: number;
  readonly extents: number;
}

/**
 * Makes a reflink copy of a detached image. Replaces an existing `target` atomically. Durable when it resolves; with `durable: false` only
 * after syncDisk, which may run while the copy is in use.
 */
export async function cloneDisk(
  native: Native,
  source: string,
  target: string,
  options: { durable?: boolean } = {},
): Promise<void> {
  await named("copying a disk", () => native.clone(source, target, options));
}

/** Makes an image and its name durable, before a durable record names it. */
export const syncDisk = (native: Native, image: string): Promise<void> =>
  named("copying a disk", () => native.syncFile(image));

/**
 * Mounts `image` on the existing directory `mountPoint`. The mount replays an unclean journal; nothing else is repaired. If it is
 * already attached there, answers as the first time. If attached elsewhere, fails, because two mounts would destroy it.
 * Uses direct I/O below the mount, so that the page cache has each block once (measured: writes 2 to 5 times faster, reads equal).
 */
export async function attachDisk(native: Native, image: string, mountPoint: string): Promise<AttachedDisk> {
  try {
    const device = await native.attach({
      image,
      mountPoint,
      flags: mountFlags,
      options: ext4Options,
      directIo: true,
    });
    return { image, mountPoint, device };
  } catch (error) {
    if (error instanceof NativeError && damage.has(error.errno)) throw damagedDisk(error);
    throw new DiskFault("internal", "attaching a disk failed", { cause: error });
  }
}

const damagedDisk = (cause: unknown): DiskFault =>
  new DiskFault(
    "failed_precondition",
    "the disk's file system is damaged and cannot be mounted; use a checkpoint from before the damage",
    { cause },
  );

/**
 * Unmounts and frees the loop device. Waits up to `patienceMs` for the last user. `lazy` does not wait: the kernel finishes
 * when the last user is gone, and the image must not be attached again before.
 */
export async function detachDisk(
  native: Native,
  mountPoint: string,
  options: { lazy?: boolean; patienceMs?: number } = {},
): Promise<void> {
  const patienceMs = options.patienceMs ?? detachPatienceMs;
  await named("detaching a disk", async () => {
    for (let waitedMs = 0; ; waitedMs += detachPollMs) {
      try {
        await native.detach(mountPoint, { lazy: options.lazy ?? false });
        return;
      } catch (error) {
        const busy = error instanceof NativeError && error.errno === "EBUSY";
        if (!busy || waitedMs >= patienceMs) throw error;
        await sleep(detachPollMs);
      }
    }
  });
}

/** Writes dirty pages back before a checkpoint, while writers run, so that little is left for the pause. */
export const writeBackDisk = (native: Native, mountPoint: string) =>
  named("writing a disk's changes back", () => native.sync(mountPoint));

export async function diskBlocks(native: Native, image: string): Promise<DiskBlocks> {
  const { count, allocatedBytes, exclusiveBytes } = await native.extents(image);
  return { extents: count, allocatedBytes, exclusiveBytes };
}

/** Makes a detached image larger, never smaller. The file system in it is not grown. */
export async function growImage(image: string, sizeMb: number): Promise<void> {
  await named("growing a disk", async () => {
    const { size } = await stat(image);
    if (size > sizeMb * bytesPerMib)
      throw new ClocheError(
        "invalid_argument",
        `disk_mb: ${sizeMb} is less than the disk has (${size / bytesPerMib})`,
      );
    await truncate(image, sizeMb * bytesPerMib);
  });
}

/** growImage, and grows the file system too. Repeatable: finishes an interrupted growth. */
export async function growDisk(image: string, sizeMb: number): Promise<void> {
  await growImage(image, sizeMb);
  await named("growing a disk", async () => {
    // resize2fs requires a check after use; it is cheap for an image that was never mounted.
    await run(["e2fsck", "-fp", image], { deadlineMs: offlineDeadlineMs }).catch((error: unknown) => {
      if (!(error instanceof CommandError)) throw error;
      // Exit code 1: it corrected errors, which is fine. 4, 8: errors that it may not correct by itself.
      if (error.exitCode === 4 || error.exitCode === 8) throw damagedDisk(error);
      if (error.exitCode !== 1) throw error;
    });
    await run(["resize2fs", image], { deadlineMs: offlineDeadlineMs });
  });
}

/** Throws a public error; host paths stay in its cause. */
async function named<T>(what: string, body: () => Promise<T>): Promise<T> {
  try {
    return await body();
  } catch (error) {
    if (error instanceof ClocheError) throw error;
    if (error instanceof NativeError && error.errno === "ENOSPC")
      throw new ClocheError("resource_exhausted", `${what} failed: the host's disk pool is full`, {
        resource: "disk",
        cause: error,
      });
    throw new ClocheError("internal", `${what} failed`, { cause: error });
  }
}
