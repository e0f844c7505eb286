// What every machine driver must do, with a stand-in agent (tests/fixtures/stand-in-agent.cjs) in the machine.
import { copyFile, mkdir, readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { defaults } from "@cloche/protocol";
import { cloneDisk } from "../../packages/host/src/disk/disk.ts";
import {
  type SnapshotHooks,
  type MachineDriver,
  type MachineFiles,
  type ReadyHooks,
  type RunningMachine,
  snapshotDisk,
} from "../../packages/host/src/drivers/driver.ts";
import type { Native } from "../../packages/host/src/sys/native.ts";

export interface DriverLab {
  /** A driver as a start of the service makes it: the second one knows nothing of the first. */
  openDriver(): Promise<MachineDriver>;
  native: Native;
  /** On a reflink file system. */
  dir: string;
  /** ext4 image that disks are cloned from. */
  baseImage: string;
  /** How machines are made ahead; absent: the driver makes none, or needs nobody for it. */
  ready?: ReadyHooks;
  /** What the machine's agent does for the driver; a virtual machine must let go of its disk by itself. Default: nothing. */
  hooks?(machine: RunningMachine): SnapshotHooks;
  /** What the driver left on this machine: names of processes, mounts, namespaces, cgroups, loop devices. */
  leftovers(): Promise<string[]>;
  /** Resolves when what is made ahead is there. */
  settled?(): Promise<void>;
  close(): Promise<void>;
}

/** The default shape: drivers keep machines of it ready. */
const resources = { cpus: defaults.cpus, memoryMb: defaults.memoryMb, diskMb: 1_024 };
const noHooks: SnapshotHooks = { flush: async () => {}, detachDisk: async () => {} };
const ANSWER_MS = 10_000;

interface Ask {
  (path: string, body?: object): Promise<Record<string, unknown>>;
}

export function machineContract(name: string, openLab: () => Promise<DriverLab>): void {
  describe(`machine driver: ${name}`, () => {
    let lab: DriverLab;
    let driver: MachineDriver;
    let made = 0;
    const all: MachineFiles[] = [];

    beforeAll(async () => {
      lab = await openLab();
      driver = await lab.openDriver();
      await driver.probe();
      await driver.start(lab.ready);
    });
    afterEach(async () => {
      for (const files of all.splice(0)) {
        await driver.destroy(files);
        await rm(files.dir, { recursive: true, force: true });
      }
    });
    afterAll(async () => {
      await driver.stop();
      const left = await lab.leftovers();
      await lab.close();
      expect(left).toEqual([]);
    });

    const newFiles = async (seed?: string): Promise<MachineFiles> => {
      made += 1;
      const id = `sbx-${String(made).padStart(20, "a")}`;
      const dir = join(lab.dir, id);
      await mkdir(dir, { recursive: true });
      const files = { id, dir, diskImage: join(dir, "disk.ext4") };
      await cloneDisk(lab.native, seed ?? lab.baseImage, files.diskImage);
      all.push(files);
      return files;
    };
    const hooksOf = (machine: RunningMachine): SnapshotHooks => lab.hooks?.(machine) ?? noHooks;
    const newSnapshot = async () => {
      made += 1;
      const dir = join(lab.dir, `snapshot-${made}`);
      await mkdir(dir);
      return { dir };
    };

    it("creates a machine whose agent answers and whose disk is there, and destroys it without a trace", async () => {
      const files = await newFiles();
      const machine = await driver.create(files, resources);
      expect(machine.bootstrapSecret).toMatch(/^[\w-]{43}$/);
      const ask = askOf(machine);
      await ask("/write", { name: "greeting", text: "hello" });
      expect(await ask("/read", { name: "greeting" })).toEqual({ text: "hello" });
      const stats = await driver.stats(files);
      expect(stats.processes).toBeGreaterThan(0);
      expect(stats.memoryBytes).toBeGreaterThan(1_000_000);
      await driver.destroy(files);
      expect(await driver.adopt(files)).toBeUndefined();
      await driver.destroy(files);
      expect(await readdir(files.dir)).toEqual(["disk.ext4"]);
    });

    it("creates machines on fresh disks that it makes itself, each for one start and as large as was asked for", async () => {
      const asked = { ...resources, diskMb: defaults.diskMb + 512 };
      if (lab.ready) await lab.settled?.();
      for (let round = 0; round < 2; round += 1) {
        const files = await newFiles();
        const made = await driver.ready?.freshDisk(files, asked);
        expect(made ?? false).toBe(lab.ready !== undefined);
        if (!made) return;
        expect((await stat(files.diskImage)).size).toBe(asked.diskMb * 1024 * 1024);
        const machine = await driver.create(files, asked);
        expect((await askOf(machine)("/list"))["names"]).not.toContain("greeting");
        await askOf(machine)("/write", { name: "greeting", text: "hello" });
        // No fresh disk any more: what was written is seen.
        const again = await driver.create(files, asked);
        expect(await askOf(again)("/read", { name: "greeting" })).toEqual({ text: "hello" });
      }
      expect(await driver.ready?.freshDisk(await newFiles(), resources)).toBe(false);
    });

    it("keeps what was written when a stopped machine is created again from its disk", async () => {
      const files = await newFiles();
      const machine = await driver.create(files, resources);
      await askOf(machine)("/write", { name: "kept", text: "yes" });
      // Stopping is no shutdown: a virtual machine's own cache of the disk goes with it.
      await hooksOf(machine).flush();
      await driver.stopMachine(files);
      const again = await driver.create(files, resources);
      expect(await askOf(again)("/read", { name: "kept" })).toEqual({ text: "yes" });
    });

    it("takes a checkpoint that has everything written before and nothing after, and swaps it in", async () => {
      const files = await newFiles();
      const machine = await driver.create(files, resources);
      const ask = askOf(machine);
      const hooks = hooksOf(machine);
      await ask("/write", { name: "state", text: "before" });
      const checkpoint = join(files.dir, "checkpoint.ext4");
      await driver.checkpointDisk(files, checkpoint, hooks);
      await ask("/write", { name: "state", text: "after" });
      const { count } = (await ask("/count")) as { count: number };
      const toImage = join(files.dir, "disk-2.ext4");
      await cloneDisk(lab.native, checkpoint, toImage);
      await driver.swapDisk(files, toImage, hooks);
      files.diskImage = toImage;
      expect(await ask("/read", { name: "state" })).toEqual({ text: "before" });
      // The agent lived on.
      expect((await ask("/count"))["count"]).toBeGreaterThanOrEqual(count);
    });

    it("leaves the old disk attached when the new one cannot be", async () => {
      const files = await newFiles();
      const machine = await driver.create(files, resources);
      const ask = askOf(machine);
      await ask("/write", { name: "state", text: "old" });
      const broken = join(files.dir, "broken.ext4");
      await copyFile(join(import.meta.dirname, "machine.ts"), broken);
      await expect(driver.swapDisk(files, broken, hooksOf(machine))).rejects.toThrow();
      expect(await ask("/read", { name: "state" })).toEqual({ text: "old" });
    });

    it("forks a living machine: memory and disk of one instant, then each goes its own way", async () => {
      const source = await newFiles();
      const machine = await driver.create(source, resources);
      const ask = askOf(machine);
      await ask("/write", { name: "shared", text: "from the source" });
      const snapshot = await newSnapshot();
      await driver.snapshot(source, snapshot, { stop: false }, hooksOf(machine));
      const { count } = (await ask("/count")) as { count: number };
      const first = await newFiles(snapshotDisk(snapshot));
      const second = await newFiles(snapshotDisk(snapshot));
      const clones = [];
      for (const files of [first, second])
        clones.push(askOf(await driver.restore(files, snapshot, resources)));
      for (const clone of clones) {
        expect(await clone("/read", { name: "shared" })).toEqual({ text: "from the source" });
        const own = ((await clone("/count")) as { count: number }).count;
        expect(Math.abs(own - count)).toBeLessThan(500);
      }
      await clones[0]?.("/write", { name: "shared", text: "from a clone" });
      expect(await clones[1]?.("/read", { name: "shared" })).toEqual({ text: "from the source" });
      expect(await ask("/read", { name: "shared" })).toEqual({ text: "from the source" });
    });

    it("forks a machine that has connections open to the outside", async () => {
      const source = await newFiles();
      const machine = await driver.create(source, resources);
      const held = Array.from({ length: 5 }, () => heldConnection(machine));
      await Promise.all(held.map(({ opened }) => opened));
      const snapshot = await newSnapshot();
      await driver.snapshot(source, snapshot, { stop: false }, hooksOf(machine));
      expect(await askOf(machine)("/count")).toHaveProperty("count");
      const clone = await newFiles(snapshotDisk(snapshot));
      const ask = askOf(await driver.restore(clone, snapshot, resources));
      for (let i = 0; i < 3; i += 1) expect(await ask("/count")).toHaveProperty("count");
      for (const { close } of held) close();
    });

    it("suspends to disk and resumes with memory; a snapshot can be resumed again", async () => {
      const files = await newFiles();
      const machine = await driver.create(files, resources);
      const ask = askOf(machine);
      await ask("/fill", { bytes: 20_000_000 });
      await ask("/write", { name: "kept", text: "on disk" });
      const { count } = (await ask("/count")) as { count: number };
      const snapshot = await newSnapshot();
      await driver.snapshot(files, snapshot, { stop: true }, hooksOf(machine));
      await driver.stopMachine(files);
      for (let round = 0; round < 2; round += 1) {
        await rm(files.diskImage, { force: true });
        await cloneDisk(lab.native, snapshotDisk(snapshot), files.diskImage);
        const resumed = askOf(await driver.restore(files, snapshot, resources));
        expect((await resumed("/count"))["count"]).toBeGreaterThanOrEqual(count);
        expect(await resumed("/read", { name: "kept" })).toEqual({ text: "on disk" });
        await driver.stopMachine(files);
      }
    });

    it("lets a machine go on whose suspension was not carried through", async () => {
      const files = await newFiles();
      const machine = await driver.create(files, resources);
      const ask = askOf(machine);
      const { count } = (await ask("/count")) as { count: number };
      await driver.snapshot(files, await newSnapshot(), { stop: true }, hooksOf(machine));
      await driver.unblock(files);
      await driver.unblock(files);
      expect((await ask("/count"))["count"]).toBeGreaterThanOrEqual(count);
    });

    it("goes on when its memory cannot be saved, and can be saved later", async () => {
      const files = await newFiles();
      const machine = await driver.create(files, resources);
      const ask = askOf(machine);
      const hooks = hooksOf(machine);
      await ask("/hold", { name: "gone", unlink: true });
      const tried = await driver.snapshot(files, await newSnapshot(), { stop: false }, hooks).then(
        () => "saved",
        (error: { code?: string; message: string }) => `${error.code}: ${error.message}`,
      );
      // A driver that can save such files may; one that cannot says so.
      expect(tried).toMatch(/^saved$|^failed_precondition: .*\/gone/);
      expect(await ask("/count")).toHaveProperty("count");
      await ask("/release");
      await driver.snapshot(files, await newSnapshot(), { stop: false }, hooks);
    });

    it("is found again by a driver that knows nothing, and its end is told", async () => {
      const files = await newFiles();
      const ask = askOf(await driver.create(files, resources));
      await ask("/write", { name: "kept", text: "yes" });
      const next = await lab.openDriver();
      const ended = new Promise<string>((resolve) => next.onExit((id, reason) => resolve(`${id} ${reason}`)));
      const adopted = await next.adopt(files);
      expect(adopted).toBeDefined();
      expect(await askOf(adopted as RunningMachine)("/read", { name: "kept" })).toEqual({ text: "yes" });
      await ask("/exit").catch(() => undefined);
      expect(await ended).toMatch(`${files.id} the machine's process`);
      expect(await next.adopt(files)).toBeUndefined();
      await next.destroy(files);
    });

    it("sweeps away machines that nobody keeps, and only those", async () => {
      const kept = await newFiles();
      const lost = await newFiles();
      const ask = askOf(await driver.create(kept, resources));
      await driver.create(lost, resources);
      expect(await driver.sweep(new Set([kept.id]))).toHaveLength(1);
      expect(await ask("/count")).toHaveProperty("count");
      expect(await driver.adopt(lost)).toBeUndefined();
    });

    it("refuses to work on a machine that does not run", async () => {
      const files = await newFiles();
      await expect(driver.checkpointDisk(files, join(files.dir, "x"), noHooks)).rejects.toMatchObject({
        code: "failed_precondition",
      });
    });
  });
}

const askOf =
  (machine: { agentHost: string; agentPort: number }): Ask =>
  async (path, body = {}) => {
    const response = await fetch(`http://${machine.agentHost}:${machine.agentPort}${path}`, {
      method: "POST",
      headers: { connection: "close" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    if (!response.ok) throw new Error(await response.text());
    return (await response.json()) as Record<string, unknown>;
  };

/** A request that stays open, as a client of the sandbox has it when the sandbox is forked. */
function heldConnection(machine: { agentHost: string; agentPort: number }) {
  const abort = new AbortController();
  const opened = fetch(`http://${machine.agentHost}:${machine.agentPort}/count`, {
    method: "POST",
    body: "{}",
    signal: abort.signal,
  }).then((response) => response.text());
  return { opened, close: () => abort.abort() };
}
