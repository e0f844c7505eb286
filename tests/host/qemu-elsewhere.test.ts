// A suspended virtual machine that goes to storage and continues on another host: two drivers, each with its own pool, network and
// instance. Emulated, so that it runs anywhere.
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { openDirectoryStore } from "../../packages/host/src/blob/directory-store.ts";
import { CheckpointArchive } from "../../packages/host/src/checkpoint/archive.ts";
import { TemplateBases } from "../../packages/host/src/checkpoint/template-bases.ts";
import { snapshotDisk } from "../../packages/host/src/drivers/driver.ts";
import { reflink } from "../../packages/host/src/drivers/qemu/reflink.ts";
import type { TravellingRecord } from "../../packages/host/src/suspended/image-description.ts";
import { StoredImages } from "../../packages/host/src/suspended/stored-images.ts";
import { FakeNames } from "../../packages/host/src/testing/fake-names.ts";
import { call, hooksOf, LAB_RESOURCES, type Lab, MOUNT, openLab, processesOf, runIn } from "./qemu-lab.ts";

vi.setConfig({ testTimeout: 300_000, hookTimeout: 900_000 });

const root = process.getuid?.() === 0;
if (!root) console.warn("tests of virtual machines that change hosts are skipped: they need root");

const ID = `sbx-${"v".repeat(20)}`;
const record = { id: ID, teamId: "team-t", runtime: "qemu", diskMb: 1_024, epoch: 3 } as TravellingRecord;
const names = new FakeNames();
const { signal } = new AbortController();

/** The suspended images of one host, in storage that both share. */
async function imagesOf(lab: Lab, storage: string): Promise<StoredImages> {
  const template = join(await lab.directory("template"), "disk.ext4");
  execFileSync("truncate", ["-s", "1G", template]);
  const parts = {
    blobs: await openDirectoryStore(storage),
    native: lab.native,
    randomBytes,
    nowMs: Date.now,
    poolDir: dirname(template),
  };
  return new StoredImages({
    ...parts,
    archive: new CheckpointArchive({ ...parts, folder: "images" }),
    templates: new TemplateBases({
      ...parts,
      archive: new CheckpointArchive(parts),
      template: { name: "base", image: async () => template },
      names,
      signal,
    }),
    names,
    generation: () => 1,
  });
}

describe.skipIf(!root)("a suspended virtual machine", () => {
  let here: Lab;
  let there: Lab;

  beforeAll(async () => {
    here = await openLab("here", { accelerator: "tcg" });
    there = await openLab("there", { accelerator: "tcg" });
  });
  afterAll(async () => {
    await here?.close();
    await there?.close();
  });

  it("continues on another host with its memory, from what lies in storage", async () => {
    const storage = join(here.home, "storage");
    const [before, after] = [here.driver(), there.driver()];
    await before.start();
    const made = await here.files(ID);
    const machine = await before.create(made, LAB_RESOURCES);
    expect((await runIn(machine, `${MOUNT} && echo kept > /mnt/disk/file`)).code).toBe(0);
    await call(machine, "/counter");
    const saved = { dir: await here.directory("saved") };
    await before.snapshot(made, saved, { stop: true }, hooksOf(machine));
    await before.stopMachine(made);

    const base = await before.memoryBase(saved);
    expect(base).toBeDefined();
    const memory = { dir: saved.dir, cpuClass: "c", base };
    const images = await imagesOf(here, storage);
    const { key, bytes } = await images.store({ record, disk: snapshotDisk(saved), memory }, signal);
    // Most of its memory and the whole system image are the template's, which is stored once.
    expect(bytes).toBeLessThan((await stat(join(saved.dir, "memory"))).blocks * (512 / 3));
    await here.removeDirectory("saved");

    const elsewhere = await imagesOf(there, storage);
    const image = await elsewhere.open(key);
    const brought = { dir: await there.directory("brought") };
    await elsewhere.writeSmall(image, brought.dir);
    await after.requireRestorable(brought, { descriptionOnly: true });
    expect(await after.memoryBase(brought)).toBeUndefined();
    await elsewhere.fetchMemory(image, brought.dir, undefined, signal);
    await elsewhere.fetchDisk(image, snapshotDisk(brought), signal);
    await after.requireRestorable(brought);
    const files = await there.files(ID);
    execFileSync("rm", [files.diskImage]);
    await reflink(snapshotDisk(brought), files.diskImage);
    const resumed = await after.restore(files, brought, LAB_RESOURCES);
    expect(await call(resumed, "/counter")).toEqual({ counter: 2 });
    expect((await runIn(resumed, "cat /mnt/disk/file")).stdout).toBe("kept\n");
    await after.destroy(files);
    expect([...(await processesOf(here.tag)), ...(await processesOf(there.tag))]).toEqual([]);
  });
});
