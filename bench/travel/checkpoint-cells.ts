/** Checkpoints: what the answer takes by data stored, by data not yet synced and by extents, against copies and floors. */
import { constants, copyFile } from "node:fs/promises";
import { join } from "node:path";
import type { Lab } from "../lab.ts";
import type { Cell } from "../runner.ts";
import {
  diskImage,
  fill,
  type OpenCell,
  poolFolder,
  remove,
  run,
  type Sandbox,
  shell,
  timed,
} from "./shared.ts";

/**
 * Takes checkpoints and answers how long the answer took; each is durable before the next sample. They stay to the end: the
 * next one's upload shares what it has in common with the last.
 */
class Checkpointer {
  readonly #taken: { sandbox: Sandbox; id: string }[] = [];

  async take(sandbox: Sandbox): Promise<number> {
    const beganMs = performance.now();
    const { checkpoint_id: id } = await sandbox.checkpoints.create({});
    const tookMs = performance.now() - beganMs;
    this.#taken.push({ sandbox, id });
    await sandbox.checkpoints.wait(id, { timeout_secs: 300 });
    return tookMs;
  }

  async close(): Promise<void> {
    for (const { sandbox, id } of this.#taken) await sandbox.checkpoints.delete(id);
  }
}

/** Synced data: the answer shall depend on neither the data stored nor the size of the disk. */
export async function storedDataCell(lab: Lab, samples: number): Promise<OpenCell> {
  const small = await lab.cloche.create({ name: "bench-stored-10" });
  const large = await lab.cloche.create({ name: "bench-stored-1024" });
  await fill(small, 10);
  await fill(large, 1024);
  const folder = await poolFolder(lab);
  const source = join(folder, "source");
  await run("sh", ["-c", `head -c 1G /dev/urandom > ${source} && sync ${source}`]);
  const image = await diskImage(lab, large);
  const mountPoint = join(folder, "mount");
  await run("mkdir", [mountPoint]);
  const checkpoints = new Checkpointer();
  const copied = (path: string, how: () => Promise<unknown>) => async (): Promise<number> => {
    const tookMs = await timed(how);
    await remove(path);
    return tookMs;
  };
  const copy = join(folder, "copy");
  const clone = join(folder, "clone");
  const cell: Cell = {
    name: "checkpoint, answered",
    samples,
    warmups: 1,
    arms: [
      { name: "10 MiB of data", run: () => checkpoints.take(small) },
      { name: "1 GiB of data", run: () => checkpoints.take(large) },
      {
        name: "full copy of 1 GiB, fsync",
        samples: Math.min(samples, 20),
        run: copied(copy, () => run("sh", ["-c", `cp --reflink=never ${source} ${copy} && sync ${copy}`])),
      },
      {
        name: "floor: FICLONE of the 1 GiB disk",
        run: copied(clone, () => copyFile(image, clone, constants.COPYFILE_FICLONE_FORCE)),
      },
      {
        name: "floor: mount of a clone",
        run: async () => {
          await copyFile(image, clone, constants.COPYFILE_FICLONE_FORCE);
          try {
            const tookMs = await timed(() => run("mount", ["-o", "loop,nosuid,nodev", clone, mountPoint]));
            await run("umount", [mountPoint]);
            return tookMs;
          } finally {
            await remove(clone);
          }
        },
      },
    ],
    targets: [
      { arm: "1 GiB of data", against: "10 MiB of data", atMost: 1.3, from: "issue 4" },
      { arm: "1 GiB of data", against: "full copy of 1 GiB, fsync", atMost: 0.03, from: "issue 4" },
      { arm: "1 GiB of data", against: "full copy of 1 GiB, fsync", atMost: 0.01, from: "issue 6" },
    ],
  };
  return {
    cell,
    async close() {
      await checkpoints.close();
      await Promise.all([small.delete(), large.delete()]);
      await remove(folder);
    },
  };
}

/** Data not yet on the disk: the checkpoint has to write it, as an fsync of the same bytes in the sandbox has. */
export async function dirtyDataCell(lab: Lab, samples: number): Promise<OpenCell> {
  const sandbox = await lab.cloche.create({ name: "bench-dirty" });
  const checkpoints = new Checkpointer();
  const dirty = (megabytes: number) => async (): Promise<number> => {
    await fill(sandbox, megabytes, false);
    return await checkpoints.take(sandbox);
  };
  const synced = (megabytes: number) => async (): Promise<number> => {
    await fill(sandbox, megabytes, false);
    return await timed(() => sandbox.exec(["sync"]));
  };
  const large = Math.min(samples, 5);
  const cell: Cell = {
    name: "checkpoint of data not yet synced",
    samples: Math.min(samples, 20),
    warmups: 1,
    arms: [
      { name: "0 MB dirty", run: () => checkpoints.take(sandbox) },
      { name: "100 MB dirty", run: dirty(100) },
      { name: "sync of 100 MB", run: synced(100) },
      { name: "1 GB dirty", samples: large, run: dirty(1000) },
      { name: "sync of 1 GB", samples: large, run: synced(1000) },
    ],
    targets: [
      { arm: "100 MB dirty", against: "sync of 100 MB", atMost: 1.5, from: "own" },
      { arm: "1 GB dirty", against: "sync of 1 GB", atMost: 1.5, from: "own" },
    ],
  };
  return {
    cell,
    async close() {
      await checkpoints.close();
      await sandbox.delete();
    },
  };
}

/** A reflink costs time by the extent: the same data in one piece, and in 8,000. */
export async function extentsCell(lab: Lab, samples: number): Promise<OpenCell> {
  const whole = await lab.cloche.create({ name: "bench-extents-1" });
  const pieces = await lab.cloche.create({ name: "bench-extents-8000" });
  await fill(whole, 64);
  const made = await pieces.exec(
    shell(
      // Every other block of a sparse file: the holes keep the pieces apart in the image.
      `python3 -c 'import os
f = os.open("/root/pieces", os.O_RDWR | os.O_CREAT)
for n in range(8000): os.pwrite(f, os.urandom(4096), n * 262144)
os.fsync(f)'`,
    ),
  );
  if (made.exit_code !== 0) throw new Error(`making 8,000 extents: ${made.stderr}`);
  const checkpoints = new Checkpointer();
  const cell: Cell = {
    name: "checkpoint by extents",
    samples: Math.min(samples, 20),
    warmups: 1,
    arms: [
      { name: "data in few extents", run: () => checkpoints.take(whole) },
      { name: "data in 8,000 extents", run: () => checkpoints.take(pieces) },
    ],
    targets: [],
  };
  return {
    cell,
    async close() {
      await checkpoints.close();
      await Promise.all([whole.delete(), pieces.delete()]);
    },
  };
}
