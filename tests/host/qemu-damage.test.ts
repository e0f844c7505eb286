// Damaged files under virtual machines: what can never be restored is told apart from what may work at the next try.
import { readdirSync } from "node:fs";
import { appendFile, chmod, readFile, truncate, writeFile } from "node:fs/promises";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { ImageMismatchError, type MachineFiles } from "../../packages/host/src/drivers/driver.ts";
import type { QemuDriver } from "../../packages/host/src/drivers/qemu/driver.ts";
import { snapshotPaths } from "../../packages/host/src/drivers/qemu/snapshot-files.ts";
import { fillPool } from "./full-pool.ts";
import { hooksOf, LAB_RESOURCES, type Lab, MOUNT, openLab, processesOf, runIn } from "./qemu-lab.ts";

vi.setConfig({ testTimeout: 300_000, hookTimeout: 900_000 });

const root = process.getuid?.() === 0;
if (!root) console.warn("tests of damaged virtual machines are skipped: they need root");

describe.skipIf(!root)("damage", () => {
  let lab: Lab;
  let driver: QemuDriver;
  const used: MachineFiles[] = [];
  const files = async (id: string): Promise<MachineFiles> => {
    const made = await lab.files(id);
    used.push(made);
    return made;
  };

  beforeAll(async () => {
    lab = await openLab("damage", { accelerator: "tcg" });
    driver = lab.driver();
    await driver.probe();
    await driver.start();
  });
  afterEach(async () => {
    for (const made of used.splice(0)) await driver.destroy(made);
    expect(await processesOf(lab.tag)).toEqual([]);
    expect(lab.network.leased.size).toBe(0);
  });
  afterAll(() => lab?.close());

  /** A machine whose memory lies in `dir`, suspended, with a file on its disk. */
  async function suspended(id: string): Promise<{ made: MachineFiles; dir: string }> {
    const made = await files(id);
    const machine = await driver.create(made, LAB_RESOURCES);
    expect((await runIn(machine, `${MOUNT} && echo safe > /mnt/disk/file`)).code).toBe(0);
    const into = { dir: await lab.directory(`${id}-memory`) };
    await driver.snapshot(made, into, { stop: true }, hooksOf(machine));
    await driver.stopMachine(made);
    return { made, dir: into.dir };
  }
  async function startsFromDisk(made: MachineFiles): Promise<void> {
    const cold = await driver.create(made, LAB_RESOURCES);
    expect((await runIn(cold, `${MOUNT} && cat /mnt/disk/file`)).stdout).toBe("safe\n");
  }

  it("is known for good when memory or device state is not what was written", async () => {
    const { made, dir } = await suspended("sbx-cut");
    const paths = snapshotPaths(dir);
    await appendFile(paths.devices, "more");
    await expect(driver.restore(made, { dir }, LAB_RESOURCES)).rejects.toBeInstanceOf(ImageMismatchError);
    await truncate(paths.memory, 4_096);
    await expect(driver.restore(made, { dir }, LAB_RESOURCES)).rejects.toBeInstanceOf(ImageMismatchError);
    expect(lab.network.leased.size).toBe(0);
    await startsFromDisk(made);
  });

  it("is known for good when QEMU cannot take the device state", async () => {
    const { made, dir } = await suspended("sbx-state");
    const paths = snapshotPaths(dir);
    const state = await readFile(paths.devices);
    // The header stays; what follows is no section of QEMU's.
    state.fill(0xaa, 64, 4_096);
    await chmod(paths.devices, 0o600);
    await writeFile(paths.devices, state);
    const manifest = JSON.parse(await readFile(paths.manifest, "utf8")) as Record<string, unknown>;
    const devicesSha256 = createHash("sha256").update(state).digest("hex");
    await writeFile(paths.manifest, JSON.stringify({ ...manifest, devicesSha256 }));
    await expect(driver.restore(made, { dir }, LAB_RESOURCES)).rejects.toBeInstanceOf(ImageMismatchError);
    await startsFromDisk(made);
  });

  it("ends a machine whose disk could not be written, once the pool has room", async () => {
    const made = await files("sbx-full");
    const reasons: string[] = [];
    driver.onExit((id, reason) => void (id === made.id && reasons.push(reason)));
    const machine = await driver.create(made, LAB_RESOURCES);
    expect((await runIn(machine, `${MOUNT} && echo safe > /mnt/disk/file && sync`)).code).toBe(0);
    const giveBack = fillPool(lab.pool.dir, 1);
    try {
      await runIn(machine, "dd if=/dev/zero of=/mnt/disk/large bs=1M count=300 conv=fsync");
      await new Promise((resolve) => setTimeout(resolve, 5_000));
      expect(reasons).toEqual([]);
    } finally {
      giveBack();
    }
    const why = "its disk took no more writes, because the host's disk was full or failed";
    await expect.poll(() => reasons, { timeout: 60_000 }).toEqual([why]);
    await driver.stopMachine(made);
    await startsFromDisk(made);
  });

  it("makes a damaged template anew", async () => {
    const templates = join(lab.pool.dir, "vm-templates");
    const [key = ""] = readdirSync(templates);
    const { memory } = snapshotPaths(join(templates, key));
    await chmod(memory, 0o600);
    await truncate(memory, 4_096);
    const made = await files("sbx-anew");
    const machine = await driver.create(made, LAB_RESOURCES);
    expect((await runIn(machine, `${MOUNT} && echo works`)).stdout).toBe("works\n");
    expect(readdirSync(templates)).toEqual([key]);
  });
});
