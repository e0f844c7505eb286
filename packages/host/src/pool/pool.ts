/**
 * The disk pool: the directory of all disk images, on a file system that can share blocks between files (reflink).
 * Owns `<home>/pool` and, if CLOCHE_HOME itself cannot reflink, the sparse XFS image `<home>/pool.xfs` mounted there.
 *
 *   absent ──openPool──▶ open (directory, or mounted image) ──closePool──▶ closed (unmounted; data stays)
 *
 * Called by the host at start and stop and by set-up. A mount left by a killed service is adopted as it is.
 * Everything survives a crash, except an unfinished image, `pool.xfs.new`, which the next start makes anew.
 */
import { mkdir, open, readFile, rename, rm, stat, statfs, truncate, writeFile } from "node:fs/promises";
import { realpathSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { inStep, type Progress, SetupError } from "@cloche/base";
import { run } from "@cloche/base/run";
import { ClocheError } from "@cloche/protocol";
import { besideHost, type LaunchPlace } from "../sys/launch-place.ts";
import { mountUsers } from "../sys/mount-users.ts";
import { listLoopDevices, mountAt } from "../sys/mounts.ts";
import type { Native } from "../sys/native.ts";

export interface Pool {
  readonly dir: string;
  /** "native": a plain directory of CLOCHE_HOME; "image": a loop-mounted XFS image. */
  readonly kind: "native" | "image";
}

const step = "disk pool";
const bytesPerGib = 1024 ** 3;
const smallestPoolBytes = 2 * bytesPerGib;
const shareOfFreeSpace = 0.8;
const closePatienceMs = 10_000;
const closePollMs = 100;
const xfsMagic = "XFSB";

export interface OpenPoolOptions {
  readonly home: string;
  /** Size of the image; grows an existing one, never shrinks it. Default: 80 % of the free space when it is made. */
  readonly sizeBytes?: number;
  /** Place from which the image is mounted. Default: this process's. */
  readonly place?: LaunchPlace;
  readonly progress: Progress;
}

/** Makes, mounts and grows the pool as needed. Repeatable. */
export function openPool(options: OpenPoolOptions): Promise<Pool> {
  const repair =
    "free some disk space, or set CLOCHE_HOME to a directory on a larger disk, and run the command again";
  return inStep(options.progress, step, repair, async (detail) => {
    await mkdir(options.home, { recursive: true, mode: 0o700 });
    const home = realpathSync(options.home);
    const dir = join(home, "pool");
    const image = join(home, "pool.xfs");
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const imageBytes = await sizeOf(image);
    if (imageBytes === undefined && (await canReflink(dir))) return { dir, kind: "native" };
    if (imageBytes === undefined) await makeImage(image, options.sizeBytes, detail);
    else if (options.sizeBytes !== undefined && options.sizeBytes > imageBytes) {
      detail(`growing from ${gib(imageBytes)} to ${gib(options.sizeBytes)}`);
      await truncate(image, options.sizeBytes);
    }
    await mountImage(image, dir, options.place ?? besideHost);
    // Machines of all instances have a slave copy of every mount: our unmount reaches the copies only from a shared mount.
    await run(["mount", "--make-shared", dir]);
    await growToImage(image, dir);
    if (!(await canReflink(dir))) throw new Error(`${dir} cannot share blocks between files`);
    return { dir, kind: "image" };
  });
}

/**
 * Unmounts the pool's image, if there is one. Waits a little, because a disk just detached may keep it busy for a moment. Throws
 * failed_precondition, which names what uses it, if it stays busy. Repeatable.
 */
export async function closePool(home: string): Promise<void> {
  const dir = join(realpathSync(home), "pool");
  for (let waitedMs = 0; await mountAt(dir); ) {
    try {
      await run(["umount", dir]);
    } catch (error) {
      if (waitedMs >= closePatienceMs) {
        const users = await mountUsers(dir);
        const who = users.length === 0 ? "something that is not seen from here" : users.join("; ");
        throw new ClocheError(
          "failed_precondition",
          `${dir} cannot be unmounted, because it is in use: ${who}. End that, and run npm stop again`,
          { cause: error },
        );
      }
      await sleep(closePollMs);
      waitedMs += closePollMs;
    }
  }
}

/**
 * Gives blocks freed in the pool back to the disk below its image. Call it from time to time: blocks freed in the last moments may
 * go only at the next call. Takes 0.2 s per GiB freed.
 */
export async function trimPool(pool: Pool, native: Native): Promise<void> {
  if (pool.kind === "native") return;
  await run(["sync", "-f", pool.dir]);
  await native.trim(pool.dir);
}

/** Tests by a clone, because names and versions of file systems do not tell. */
export async function canReflink(dir: string): Promise<boolean> {
  const source = join(dir, `.reflink-probe-${process.pid}`);
  const clone = `${source}-clone`;
  try {
    await writeFile(source, "probe".repeat(1_000));
    await run(["cp", "--reflink=always", source, clone]);
    return (await readFile(clone, "utf8")) === "probe".repeat(1_000);
  } catch {
    return false;
  } finally {
    await rm(source, { force: true });
    await rm(clone, { force: true });
  }
}

async function makeImage(image: string, sizeBytes: number | undefined, detail: (text: string) => void) {
  const free = await statfs(join(image, ".."));
  const freeBytes = free.bavail * free.bsize;
  const wanted = sizeBytes ?? Math.floor((freeBytes * shareOfFreeSpace) / bytesPerGib) * bytesPerGib;
  if (wanted < smallestPoolBytes)
    throw new Error(
      `the pool would have ${gib(wanted)}, the least is ${gib(smallestPoolBytes)} (free: ${gib(freeBytes)})`,
    );
  detail(`making a sparse image of ${gib(wanted)}`);
  const unfinished = `${image}.new`;
  await rm(unfinished, { force: true });
  const file = await open(unfinished, "wx", 0o600);
  await file.truncate(wanted);
  await file.close();
  await run(["mkfs.xfs", "-q", "-m", "reflink=1", "-L", "cloche", unfinished]);
  await run(["sync", unfinished]);
  await rename(unfinished, image);
}

/**
 * Mounts the image with buffered I/O; the disks on it use direct I/O. Blocks that clones share are then cached once for all of them
 * (measured: the first read of a program in a new clone is 3 times faster than with direct I/O here).
 */
async function mountImage(image: string, dir: string, place: LaunchPlace): Promise<void> {
  // Only the shared bind mount is there: a start was killed before it mounted the image.
  const bound = (await stat(dir)).dev === (await stat(join(dir, ".."))).dev;
  if (bound && (await mountAt(dir))) await run(["umount", dir]);
  const mounted = await mountAt(dir);
  if (mounted) {
    const loop = (await listLoopDevices()).find((candidate) => candidate.device === mounted.device);
    if (loop?.backingFile === image) return;
    throw new SetupError(
      step,
      `something else is mounted on ${dir} (${mounted.source})`,
      `umount ${dir} and run the command again`,
    );
  }
  await checkMagic(image);
  await shareUnmounts(dir);
  try {
    const options = "loop,noatime,nodev,nosuid,noexec";
    await run(place.outliving(["mount", "-t", "xfs", "-o", options, image, dir]));
  } catch (error) {
    await run(["umount", dir]);
    throw new SetupError(
      step,
      `${image} cannot be mounted: ${error instanceof Error ? error.message : error}`,
      `look at the damage with \`xfs_repair -n ${image}\`, repair it with \`xfs_repair ${image}\` (where that refuses because of the log: xfs_repair -L, which may lose the last seconds), and run the command again`,
      { cause: error },
    );
  }
}

/**
 * Makes `dir` a shared mount. Machines run in their own mount namespaces, which start as copies. An unmount reaches the copies only
 * from a shared mount; otherwise the pool's loop device would outlive `closePool` in each of them.
 */
async function shareUnmounts(dir: string): Promise<void> {
  await run(["mount", "--bind", dir, dir]);
  await run(["mount", "--make-shared", dir]);
}

async function checkMagic(image: string): Promise<void> {
  const file = await open(image, "r");
  const { buffer } = await file.read(Buffer.alloc(4), 0, 4, 0);
  await file.close();
  if (buffer.toString("latin1") === xfsMagic) return;
  throw new SetupError(
    step,
    `${image} is damaged: its first block is no XFS superblock`,
    `restore it from its copies with \`xfs_repair ${image}\` and run the command again; to give up all disks in it, move the file away`,
  );
}

/** Grows the file system to its image's size, also if an earlier start was interrupted in between. */
async function growToImage(image: string, dir: string): Promise<void> {
  const device = (await mountAt(dir))?.source;
  if (!device) throw new Error(`${dir} is not mounted`);
  await run(["losetup", "-c", device]);
  const { bsize, blocks } = await statfs(dir);
  const { size } = await stat(image);
  // The log and the allocation group headers take some space; a missing GiB means that the image grew.
  // By device, because a path would name the mount below ours.
  if (size - bsize * blocks > bytesPerGib) await run(["xfs_growfs", "-d", device]);
}

async function sizeOf(path: string): Promise<number | undefined> {
  return stat(path).then(
    ({ size }) => size,
    () => undefined,
  );
}

const gib = (bytes: number) => `${(bytes / bytesPerGib).toFixed(1)} GiB`;
