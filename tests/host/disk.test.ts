import { mkdir, open, readdir, readFile, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import {
  type AttachedDisk,
  attachDisk,
  cloneDisk,
  detachDisk,
  diskBlocks,
  growDisk,
} from "../../packages/host/src/disk/disk.ts";
import { openTemplates } from "../../packages/host/src/disk/template.ts";
import { closePool, openPool, type Pool } from "../../packages/host/src/pool/pool.ts";
import { listLoopDevices, listMounts } from "../../packages/host/src/sys/mounts.ts";
import { Native } from "../../packages/host/src/sys/native.ts";
import { run } from "../../packages/base/src/commands/run.ts";
import { cannotRun, GIB, type Lab, MIB, openLab } from "./lab.ts";

describe.skipIf(cannotRun)(`disks${cannotRun ? ` (skipped: ${cannotRun})` : ""}`, () => {
  let lab: Lab;
  let pool: Pool;
  let base: string;
  let image: string;
  let mountPoint: string;

  beforeAll(async () => {
    lab = await openLab();
    pool = await openPool({ home: lab.home, sizeBytes: 4 * GIB, progress: lab.progress });
    base = join(pool.dir, "base.ext4");
    await run(["truncate", "-s", "64M", base]);
    await run(["mke2fs", "-q", "-t", "ext4", "-b", "4096", "-m", "0", base]);
  });
  afterAll(async () => {
    await closePool(lab.home);
    await lab.close();
  });
  beforeEach(async () => {
    const dir = join(pool.dir, `case-${expect.getState().currentTestName?.length}-${Date.now()}`);
    image = join(dir, "disk.ext4");
    mountPoint = join(dir, "disk");
    await mkdir(mountPoint, { recursive: true });
    await cloneDisk(lab.native, base, image);
  });
  afterEach(async () => {
    for (const disk of await listAttachedDisks(pool.dir)) await detachDisk(lab.native, disk.mountPoint);
    expect(await listAttachedDisks(pool.dir)).toEqual([]);
  });
  const file = (name: string) => join(mountPoint, name);

  it("attaches, is found again, and detaches; each twice", async () => {
    const disk = await attachDisk(lab.native, image, mountPoint);
    expect(await attachDisk(lab.native, image, mountPoint)).toEqual(disk);
    expect(await listAttachedDisks(pool.dir)).toEqual([disk]);
    await detachDisk(lab.native, mountPoint);
    await detachDisk(lab.native, mountPoint);
    expect(await listAttachedDisks(pool.dir)).toEqual([]);
  });

  it("is never attached twice, not even by another process, nor over something else", async () => {
    const other = join(mountPoint, "..", "other");
    await mkdir(other);
    await attachDisk(lab.native, image, mountPoint);
    await expect(attachDisk(lab.native, image, other)).rejects.toMatchObject({ cause: { errno: "EBUSY" } });
    const stranger = new Native(lab.nativeProgram);
    await expect(attachDisk(stranger, image, other)).rejects.toMatchObject({ cause: { errno: "EBUSY" } });
    await stranger.close();
    await cloneDisk(lab.native, base, `${image}.2`);
    await expect(attachDisk(lab.native, `${image}.2`, mountPoint)).rejects.toMatchObject({
      cause: { errno: "EEXIST" },
    });
  });

  it("does not honour devices and setuid bits of the guest on the host", async () => {
    await attachDisk(lab.native, image, mountPoint);
    const { stdout } = await run(["findmnt", "-no", "OPTIONS", mountPoint]);
    for (const option of ["nodev", "nosuid", "noatime", "errors=remount-ro"])
      expect(stdout).toContain(option);
  });

  it("waits for a user to let go, and says when none does", async () => {
    await attachDisk(lab.native, image, mountPoint);
    const handle = await open(file("held"), "w");
    await expect(detachDisk(lab.native, mountPoint, { patienceMs: 50 })).rejects.toMatchObject({
      code: "internal",
      cause: { errno: "EBUSY" },
    });
    const detached = detachDisk(lab.native, mountPoint);
    await handle.close();
    await detached;
  });

  it("tells what only this disk occupies", async () => {
    await attachDisk(lab.native, image, mountPoint);
    await run(["dd", "if=/dev/urandom", `of=${file("big")}`, "bs=1M", "count=8", "conv=fsync"]);
    await cloneDisk(lab.native, image, `${image}.checkpoint`);
    await detachDisk(lab.native, mountPoint);
    const shared = await diskBlocks(lab.native, image);
    expect(shared.allocatedBytes).toBeGreaterThanOrEqual(8 * MIB);
    expect(shared.exclusiveBytes).toBeLessThan(MIB);
    await run(["rm", `${image}.checkpoint`]);
    // XFS lets go of a deleted file's blocks a moment later.
    await expect
      .poll(async () => (await diskBlocks(lab.native, image)).exclusiveBytes, { timeout: 20_000 })
      .toBeGreaterThanOrEqual(8 * MIB);
  });

  it("grows a used disk and refuses to shrink one", async () => {
    await attachDisk(lab.native, image, mountPoint);
    await writeFile(file("kept"), "yes");
    await detachDisk(lab.native, mountPoint);
    await growDisk(image, 256);
    await growDisk(image, 256);
    await expect(growDisk(image, 128)).rejects.toMatchObject({ code: "invalid_argument" });
    await attachDisk(lab.native, image, mountPoint);
    expect(await readFile(file("kept"), "utf8")).toBe("yes");
    expect(Number((await run(["stat", "-f", "-c", "%b", mountPoint])).stdout) * 4096).toBeGreaterThan(
      200 * MIB,
    );
  });

  it("replays the journal of a disk that was not unmounted", async () => {
    const disk = await attachDisk(lab.native, image, mountPoint);
    await writeFile(file("synced"), "yes");
    await run(["sync", file("synced")]);
    // A plain copy of the mounted image is what a power cut leaves behind.
    await cloneDisk(lab.native, disk.image, `${image}.cut`);
    await detachDisk(lab.native, mountPoint);
    await attachDisk(lab.native, `${image}.cut`, mountPoint);
    expect(await readFile(file("synced"), "utf8")).toBe("yes");
  });

  it("makes templates of each size once", async () => {
    const templates = await openTemplates({
      pool,
      native: lab.native,
      base: { key: "testbase", path: base, sizeMb: 64 },
      sizesMb: [128],
      progress: lab.progress,
    });
    const [one, two] = await Promise.all([templates.ofSize(256), templates.ofSize(256)]);
    expect(one).toBe(two);
    expect((await stat(one)).size).toBe(256 * MIB);
    expect(await readdir(join(pool.dir, "templates"))).toEqual([
      "testbase-128.ext4",
      "testbase-256.ext4",
      "testbase-64.ext4",
    ]);
  });
});

/** Disks attached below `dir`. */
async function listAttachedDisks(dir: string): Promise<AttachedDisk[]> {
  const [mounts, loops] = await Promise.all([listMounts(), listLoopDevices()]);
  const imageOf = new Map(loops.map((loop) => [loop.device, loop]));
  const disks: AttachedDisk[] = [];
  for (const mount of mounts) {
    const loop = imageOf.get(mount.device);
    if (mount.fsType === "ext4" && loop && mount.mountPoint.startsWith(`${dir}/`))
      disks.push({ image: loop.backingFile, mountPoint: mount.mountPoint, device: loop.path });
  }
  return disks;
}
