/**
 * Ends machines whose disk can no longer be written. When a write below a disk fails, because the host's own disk is full or broken, ext4
 * gives up its journal and takes only reads, until the image is mounted anew. Mounts show that only after the next write; so the watch
 * asks each disk when the host has room after it had none. The disk of a virtual machine is mounted by its own kernel: QEMU tells of a
 * write that failed. The machine is ended as soon as the host has room, and starts again from its disk like any other that ended
 * (restart-after-crash.ts). One timer for all machines of a driver.
 */
import { open, statfs } from "node:fs/promises";
import { dirname } from "node:path";
import type { Log } from "@cloche/base";
import { listMounts } from "../sys/mounts.ts";

/** A machine as the watch sees it. */
export interface MachineWithDisk {
  readonly id: string;
  /** Where the host has its disk mounted; undefined: the machine mounts it. */
  readonly mountPoint?: string;
  /** A write to its disk failed. */
  readonly diskFailed?: boolean;
  endForDisk(): Promise<void>;
}

export const endedForDisk = "its disk took no more writes, because the host's disk was full or failed";

const checkEveryMs = 2_000;
/** What a mount's journal and the first writes of a machine need. */
const roomBytes = 64 * 1024 * 1024;
/** As /proc/mounts says that a file system takes no more writes; we mount none read-only. */
const givenUp: ReadonlySet<string> = new Set(["ro", "emergency_ro", "shutdown"]);

export class DiskWatch {
  readonly #log: Log;
  readonly #hasRoom: () => Promise<boolean>;
  #timer: NodeJS.Timeout | undefined;
  #checking = false;
  #wasFull = false;

  constructor(log: Log, hasRoom: () => Promise<boolean>) {
    this.#log = log;
    this.#hasRoom = hasRoom;
  }

  start(machines: () => Iterable<MachineWithDisk>): void {
    this.#timer ??= setInterval(() => void this.#round(machines()), checkEveryMs).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async #round(machines: Iterable<MachineWithDisk>): Promise<void> {
    if (this.#checking) return;
    this.#checking = true;
    try {
      await this.check(machines);
    } catch (err) {
      this.#log.warn({ err }, "the disks of machines could not be checked");
    } finally {
      this.#checking = false;
    }
  }

  /** Looks once at the disks of all machines. */
  async check(machines: Iterable<MachineWithDisk>): Promise<void> {
    const wasFull = this.#wasFull;
    this.#wasFull = !(await this.#hasRoom());
    if (this.#wasFull) return;
    // A slot may have several mounts; programs see the last.
    const mounts = new Map((await listMounts()).map((mount) => [mount.mountPoint, mount]));
    for (const machine of machines) {
      const { mountPoint, diskFailed = false } = machine;
      const isShown =
        mountPoint !== undefined && mounts.get(mountPoint)?.options.some((option) => givenUp.has(option));
      const fails = async (): Promise<boolean> =>
        mountPoint !== undefined && wasFull && (await refusesWrites(mountPoint));
      if (!diskFailed && isShown !== true && !(await fails())) continue;
      this.#log.error(
        { sandbox_id: machine.id },
        "a machine's disk takes no more writes; the machine starts anew",
      );
      await machine
        .endForDisk()
        .catch((err: unknown) => this.#log.error({ err, sandbox_id: machine.id }, "cannot end a machine"));
    }
  }
}

/**
 * Whether that file system takes no more writes. Sets the times of its root to what they are, which the kernel writes down. False for a
 * machine that goes just then.
 */
async function refusesWrites(mountPoint: string): Promise<boolean> {
  try {
    await using root = await open(mountPoint);
    const { atime, mtime } = await root.stat();
    await root.utimes(atime, mtime);
    await root.sync();
    return false;
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    return code === "EIO" || code === "EROFS";
  }
}

/** Whether the pool, and the file system that its sparse image may lie on, have room again. */
export async function hasRoom(poolDir: string): Promise<boolean> {
  const free = await Promise.all(
    [poolDir, dirname(poolDir)].map(async (path) => {
      const { bavail, bsize } = await statfs(path);
      return bavail * bsize;
    }),
  );
  return Math.min(...free) >= roomBytes;
}
