import { open, readFile, rename, statfs, truncate, writeFile } from "node:fs/promises";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { canReflink, closePool, openPool, trimPool } from "../../packages/host/src/pool/pool.ts";
import { mountAt } from "../../packages/host/src/sys/mounts.ts";
import { listInstanceInventory } from "../fixtures/instance-inventory.ts";
import { run } from "../../packages/base/src/commands/run.ts";
import { cannotRun, GIB, inHome, type Lab, openLab } from "./lab.ts";
import { LineProcess } from "./line-process.ts";

describe.skipIf(cannotRun)(`disk pool${cannotRun ? ` (skipped: ${cannotRun})` : ""}`, () => {
  let lab: Lab;
  beforeEach(async () => {
    lab = await openLab();
  });
  afterEach(async () => {
    await closePool(lab.home);
    await lab.close();
  });
  const opened = (sizeBytes?: number) =>
    openPool({ home: lab.home, progress: lab.progress, ...(sizeBytes ? { sizeBytes } : {}) });

  const totalBytes = async (dir: string): Promise<number> => {
    const { blocks, bsize } = await statfs(dir);
    return blocks * bsize;
  };

  it("is made, adopted when it is open already, and keeps its files across close and open", async () => {
    const pool = await opened(3 * GIB);
    expect(await canReflink(pool.dir)).toBe(true);
    await writeFile(`${pool.dir}/kept`, "yes");
    expect(await opened(3 * GIB)).toEqual(pool);
    await closePool(lab.home);
    await closePool(lab.home);
    expect(await mountAt(pool.dir)).toBeUndefined();
    await opened(3 * GIB);
    expect(await readFile(`${pool.dir}/kept`, "utf8")).toBe("yes");
  });

  it("grows with its setting, open or closed, and never shrinks", async () => {
    const pool = await opened(3 * GIB);
    if (pool.kind === "native") return;
    await opened(5 * GIB);
    expect(await totalBytes(pool.dir)).toBeGreaterThan(4 * GIB);
    await closePool(lab.home);
    await opened(7 * GIB);
    expect(await totalBytes(pool.dir)).toBeGreaterThan(6 * GIB);
    await opened(3 * GIB);
    expect(await totalBytes(pool.dir)).toBeGreaterThan(6 * GIB);
  });

  it("finishes a growth that was interrupted after the image grew", async () => {
    const pool = await opened(3 * GIB);
    if (pool.kind === "native") return;
    await truncate(inHome(lab, "pool.xfs"), 6 * GIB);
    await opened(6 * GIB);
    expect(await totalBytes(pool.dir)).toBeGreaterThan(5 * GIB);
  });

  it("starts over when making the image was interrupted", async () => {
    await writeFile(inHome(lab, "pool.xfs.new"), "half a file system");
    const pool = await opened(3 * GIB);
    expect(await canReflink(pool.dir)).toBe(true);
  });

  it("gives space that was freed in it back to the disk below", async () => {
    const pool = await opened(3 * GIB);
    if (pool.kind === "native") return;
    const allocated = async () =>
      Number((await run(["stat", "-c", "%b", inHome(lab, "pool.xfs")])).stdout) * 512;
    await run(["dd", "if=/dev/urandom", `of=${pool.dir}/big`, "bs=1M", "count=256", "conv=fsync"]);
    const before = await allocated();
    await run(["rm", `${pool.dir}/big`]);
    await expect
      .poll(
        async () => {
          await trimPool(pool, lab.native);
          return before - (await allocated());
        },
        { timeout: 20_000, interval: 100 },
      )
      .toBeGreaterThan(200 * 1024 ** 2);
  });

  it("is gone from the machine when it is closed, though a machine's own mount namespace had a copy of it", async () => {
    const pool = await opened(3 * GIB);
    if (pool.kind === "native") return;
    const copy = new LineProcess([
      "unshare",
      "--mount",
      "--propagation",
      "slave",
      "sh",
      "-c",
      'echo "{}"; cat',
    ]);
    await copy.read();
    await closePool(lab.home);
    const { loopDevices } = await listInstanceInventory(lab.home, lab.tag);
    await copy.end();
    expect(loopDevices).toEqual([]);
  });

  it("says what is damaged and how to repair it", async () => {
    const pool = await opened(3 * GIB);
    if (pool.kind === "native") return;
    await closePool(lab.home);
    const image = inHome(lab, "pool.xfs");
    const file = await open(image, "r+");
    await file.write(Buffer.alloc(4096), 0, 4096, 0);
    await file.close();
    await expect(opened()).rejects.toThrow(/disk pool failed: .*damaged(.|\n)*repair: .*xfs_repair/);
    await rename(image, `${image}.broken`);
  });

  it("refuses a size that the disk cannot have", async () => {
    if (await canReflink(lab.home)) return;
    await expect(opened(GIB)).rejects.toThrow(/the least is 2\.0 GiB(.|\n)*repair: free some disk space/);
  });
});
