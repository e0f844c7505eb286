// The QEMU driver with real virtual machines, emulated so that it runs anywhere. One machine at a time where it can be.
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { copyFile, readdir, stat, truncate } from "node:fs/promises";
import { createServer, type Server } from "node:net";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import {
  type MachineFiles,
  type RunningMachine,
  snapshotDisk,
} from "../../packages/host/src/drivers/driver.ts";
import type { QemuDriver } from "../../packages/host/src/drivers/qemu/driver.ts";
import { templateKey, type VmPlatform } from "../../packages/host/src/drivers/qemu/platform.ts";
import { reflink } from "../../packages/host/src/drivers/qemu/reflink.ts";
import { shapeOf } from "../../packages/host/src/drivers/qemu/shape.ts";
import { snapshotPaths } from "../../packages/host/src/drivers/qemu/snapshot-files.ts";
import { vmCgroupPath } from "../../packages/host/src/drivers/qemu/vm-cgroup.ts";
import { readVmRecord, saveVmRecord, type VmRecord } from "../../packages/host/src/drivers/qemu/vm-record.ts";
import { call, hooksOf, LAB_RESOURCES, type Lab, MOUNT, openLab, processesOf, runIn } from "./qemu-lab.ts";

// An emulated boot is ten seconds of computing: minutes on a host that is busy with other things.
vi.setConfig({ testTimeout: 300_000, hookTimeout: 900_000 });

const root = process.getuid?.() === 0;
if (!root)
  console.warn(
    "tests of the QEMU driver are skipped: they need root (namespaces, mounts, a user of QEMU's own)",
  );

describe.skipIf(!root)("virtual machines", () => {
  let lab: Lab;
  let driver: QemuDriver;
  const exits: [string, string][] = [];
  const used: MachineFiles[] = [];

  const files = async (id: string): Promise<MachineFiles> => {
    const made = await lab.files(id);
    used.push(made);
    return made;
  };
  const create = async (id: string): Promise<{ made: MachineFiles; machine: RunningMachine }> => {
    const made = await files(id);
    const machine = await driver.create(made, LAB_RESOURCES);
    expect((await runIn(machine, MOUNT)).code).toBe(0);
    return { made, machine };
  };
  const pidOf = async (made: MachineFiles): Promise<number> =>
    (await readVmRecord(made.dir))?.process?.pid ?? 0;
  const counter = async (machine: RunningMachine): Promise<number> =>
    (await call<{ counter: number }>(machine, "/counter")).counter;
  let platform: VmPlatform;
  const newDriver = (): QemuDriver => {
    const made = lab.driver({ platform, health: { intervalMs: 1_000, hungAfterMs: 3_000 } });
    made.onExit((id, reason) => exits.push([id, reason]));
    return made;
  };

  beforeAll(async () => {
    lab = await openLab("test", { accelerator: "tcg" });
    platform = lab.platform;
    driver = newDriver();
    await driver.probe();
    await driver.start();
  });
  afterEach(async () => {
    exits.length = 0;
    for (const made of used.splice(0)) {
      await driver.destroy(made);
      expect(await readdir(made.dir)).not.toContain("vm");
    }
    expect(await processesOf(lab.tag)).toEqual([]);
    expect(lab.network.leased.size).toBe(0);
  });
  afterAll(() => lab?.close());

  it("runs the guest in a jail: a user of its own, no capability, nothing of the host in sight", async () => {
    const { made, machine } = await create("sbx-jail");
    const pid = await pidOf(made);
    const status = readFileSync(`/proc/${pid}/status`, "utf8");
    expect(/^CapEff:\s+0+$/m.test(status)).toBe(true);
    expect(/^CapPrm:\s+0+$/m.test(status)).toBe(true);
    expect(/^NoNewPrivs:\s+1$/m.test(status)).toBe(true);
    expect(/^Seccomp:\s+2$/m.test(status)).toBe(true);
    expect(/^Uid:\s+(\d+)/m.exec(status)?.[1]).not.toBe("0");
    expect(/^NSpid:\s+\d+\s+1$/m.test(status)).toBe(true);
    expect((await readdir(`/proc/${pid}/root`)).sort()).toEqual(
      ["bin", "dev", "lib", "lib32", "lib64", "preload.so", "sbin", "tmp", "usr", "vm"].sort(),
    );
    expect(readFileSync(`/proc/${pid}/environ`, "utf8")).not.toContain("HOME");
    // What other machines share with it, it cannot change.
    const memory = await stat(join(made.dir, "vm/base-memory"));
    expect([memory.uid, memory.mode & 0o777]).toEqual([0, 0o444]);
    // The guest's network: its gateway and the host's own services are out of reach, the agent is not.
    const listening = await runIn(machine, "nc -w 2 198.18.1.1 22 < /dev/null; echo $?");
    expect(listening.stdout.trim()).not.toBe("0");
    expect((await runIn(machine, "uname -r")).stdout).toBe(`${lab.platform.kernel.release}\n`);
  });

  it("sees the disk at its real size and keeps what is written to it", async () => {
    const { made, machine } = await create("sbx-disk");
    expect((await runIn(machine, "blockdev --getsize64 /dev/vdb")).stdout.trim()).toBe(String(1024 ** 3));
    await runIn(machine, "echo kept > /mnt/disk/file && sync && umount /mnt/disk");
    await driver.stopMachine(made);
    expect(
      execFileSync("debugfs", ["-R", "cat /file", made.diskImage], {
        stdio: ["ignore", "pipe", "ignore"],
      }).toString(),
    ).toBe("kept\n");
  });

  it("answers a repeated create with the machine that runs", async () => {
    const { made, machine } = await create("sbx-again");
    await counter(machine);
    expect(await driver.create(made, LAB_RESOURCES)).toEqual(machine);
    expect(await counter(machine)).toBe(2);
  });

  it("takes a checkpoint of one instant while the machine goes on, and swaps the disk under the living agent", async () => {
    const { made, machine } = await create("sbx-swap");
    await runIn(machine, "echo before > /mnt/disk/file");
    const checkpoint = join(made.dir, "checkpoint.ext4");
    const { pauseMs } = await driver.checkpointDisk(made, checkpoint, hooksOf(machine));
    expect(pauseMs).toBeGreaterThan(0);
    await runIn(machine, "echo after > /mnt/disk/file; touch /mnt/disk/new; sync");
    expect(await counter(machine)).toBe(1);

    const next = join(made.dir, "next.ext4");
    await reflink(checkpoint, next);
    await driver.swapDisk(made, next, hooksOf(machine));
    const swapped = { ...made, diskImage: next };
    expect((await runIn(machine, `${MOUNT} && cat /mnt/disk/file && ls /mnt/disk`)).stdout).toBe(
      "before\nfile\nlost+found\n",
    );
    expect(await counter(machine)).toBe(2);
    // The service ended right after the swap, before it was written down.
    await driver.stop();
    const record = await readVmRecord(made.dir);
    await saveVmRecord(made.dir, { ...(record as VmRecord), disks: 1 });
    driver = newDriver();
    expect(await driver.adopt(swapped)).toEqual(machine);
    await driver.swapDisk(swapped, next, hooksOf(machine));
    expect((await runIn(machine, `${MOUNT} && cat /mnt/disk/file`)).stdout).toBe("before\n");
    // Again and back: the nodes of earlier disks are gone.
    await runIn(machine, "echo second > /mnt/disk/file");
    await driver.swapDisk(swapped, made.diskImage, hooksOf(machine));
    expect((await runIn(machine, `${MOUNT} && cat /mnt/disk/file`)).stdout).toBe("after\n");
  });

  it("keeps the old disk when the new one cannot be attached", async () => {
    const { made, machine } = await create("sbx-keep");
    await runIn(machine, "echo old > /mnt/disk/file");
    const missing = driver.swapDisk(made, join(made.dir, "missing.ext4"), hooksOf(machine));
    await expect(missing).rejects.toThrow("ENOENT");
    expect((await runIn(machine, "cat /mnt/disk/file")).stdout).toBe("old\n");
    // QEMU refuses an image that is in use, here by another machine; the guest has let go of its own disk by then.
    const { made: other } = await create("sbx-other");
    await expect(driver.swapDisk(made, other.diskImage, hooksOf(machine))).rejects.toThrow("lock");
    expect((await runIn(machine, `${MOUNT} && cat /mnt/disk/file`)).stdout).toBe("old\n");
    // What is attached already can be attached again: a swap can be repeated after a crash.
    await driver.swapDisk(made, made.diskImage, hooksOf(machine));
    expect((await runIn(machine, `${MOUNT} && cat /mnt/disk/file`)).stdout).toBe("old\n");
    const checkpoint = join(made.dir, "checkpoint.ext4");
    await driver.checkpointDisk(made, checkpoint, hooksOf(machine));
    expect(existsSync(checkpoint)).toBe(true);
  });

  it("lets the machine be when the guest does not let go of its disk", async () => {
    const { made, machine } = await create("sbx-busy");
    const next = join(made.dir, "next.ext4");
    await reflink(made.diskImage, next);
    const hooks = { ...hooksOf(machine), detachDisk: () => Promise.reject(new Error("busy")) };
    await expect(driver.swapDisk(made, next, hooks)).rejects.toThrow("busy");
    expect((await runIn(machine, "touch /mnt/disk/still && ls /mnt/disk")).stdout).toContain("still");
  });

  it("forks a running machine, and the fork again: memory and disk of one instant, then apart", async () => {
    const { made, machine } = await create("sbx-source");
    await runIn(
      machine,
      "echo shared > /mnt/disk/file; sleep 1000 > /dev/null 2>&1 & echo $! > /tmp/sleeper",
    );
    await call(machine, "/ballast", "20");
    for (const expected of [1, 2, 3]) expect(await counter(machine)).toBe(expected);
    const from = { dir: await lab.directory("fork") };
    const { pauseMs } = await driver.snapshot(made, from, { stop: false }, hooksOf(machine));
    expect(pauseMs).toBeGreaterThan(0);
    expect(await counter(machine)).toBe(4);
    await runIn(machine, "echo source > /mnt/disk/file; sync");

    const cloneFiles = await files("sbx-clone");
    const restoreInto = async (target: MachineFiles, snapshot: { dir: string }): Promise<RunningMachine> => {
      execFileSync("rm", ["-f", target.diskImage]);
      await reflink(snapshotDisk(snapshot), target.diskImage);
      return driver.restore(target, snapshot, LAB_RESOURCES);
    };
    const clone = await restoreInto(cloneFiles, from);
    expect(clone.bootstrapSecret).toBeUndefined();
    expect(await counter(clone)).toBe(4);
    expect((await runIn(clone, "cat /mnt/disk/file; kill -0 $(cat /tmp/sleeper) && echo lives")).stdout).toBe(
      "shared\nlives\n",
    );
    expect((await runIn(machine, "cat /mnt/disk/file")).stdout).toBe("source\n");

    // A fork of the fork, from memory that is itself a clone's base; the middle one has ended.
    await runIn(clone, "echo clone > /mnt/disk/file");
    const again = { dir: await lab.directory("fork-of-fork") };
    await driver.snapshot(cloneFiles, again, { stop: false }, hooksOf(clone));
    await driver.destroy(cloneFiles);
    const grandFiles = await files("sbx-grand");
    const grand = await restoreInto(grandFiles, again);
    expect(await counter(grand)).toBe(5);
    expect((await runIn(grand, "cat /mnt/disk/file")).stdout).toBe("clone\n");

    // Each has random state and an outside address of its own.
    const random = async (of: RunningMachine) => (await call<{ random: string }>(of, "/random")).random;
    expect(await random(grand)).not.toBe(await random(machine));
    expect(grand.agentHost).not.toBe(machine.agentHost);
    // Memory that nobody wrote to is held once.
    const shared = readFileSync(`/proc/${await pidOf(grandFiles)}/smaps_rollup`, "utf8");
    expect(Number(/^Shared_Clean:\s+(\d+)/m.exec(shared)?.[1])).toBeGreaterThan(10_000);
  });

  it("gives two clones of one snapshot different random bytes", async () => {
    const { made, machine } = await create("sbx-dice");
    const from = { dir: await lab.directory("dice") };
    await driver.snapshot(made, from, { stop: true }, hooksOf(machine));
    await driver.stopMachine(made);
    const seen: string[] = [];
    for (const id of ["sbx-dice-1", "sbx-dice-2"]) {
      const target = await files(id);
      const clone = await driver.restore(target, from, LAB_RESOURCES);
      seen.push((await call<{ random: string }>(clone, "/random")).random);
      await driver.destroy(target);
    }
    expect(new Set(seen).size).toBe(2);
  });

  it("resets a clone's connections to the outside, and leaves the source's alone", async () => {
    const { made, machine } = await create("sbx-net");
    const received: string[] = [];
    const server = await new Promise<Server>((resolve) => {
      const made = createServer((socket) => {
        socket.on("error", () => undefined);
        socket.on("data", (data) => received.push(data.toString().trim()));
      }).listen(0, "0.0.0.0", () => resolve(made));
    });
    try {
      const { port } = server.address() as { port: number };
      const gateway = machine.agentHost.replace(/\d+$/, (last) => String(Number(last) - 1));
      // A line each 100 ms through one connection; `over` appears when the connection does not take them any more.
      const talk = `i=0; while sleep 0.1; do i=$((i+1)); echo line $i; done | nc ${gateway} ${port} > /dev/null 2>&1; touch /tmp/over`;
      await runIn(machine, `(${talk}) > /dev/null 2>&1 &`);
      await expect.poll(() => received.length, { timeout: 20_000 }).toBeGreaterThan(2);
      const from = { dir: await lab.directory("net") };
      await driver.snapshot(made, from, { stop: false }, hooksOf(machine));
      const cloneFiles = await files("sbx-net-clone");
      const clone = await driver.restore(cloneFiles, from, LAB_RESOURCES);
      await expect
        .poll(async () => (await runIn(clone, "ls /tmp")).stdout, { timeout: 20_000 })
        .toContain("over");
      expect((await runIn(machine, "ls /tmp")).stdout).not.toContain("over");
      const before = received.length;
      await expect.poll(() => received.length, { timeout: 20_000 }).toBeGreaterThan(before);
    } finally {
      server.close();
    }
  });

  it("suspends to files and resumes from them, in another life of the service", async () => {
    const { made, machine } = await create("sbx-sleep");
    await runIn(machine, "echo asleep > /mnt/disk/file");
    await counter(machine);
    const into = { dir: await lab.directory("suspended") };
    await driver.snapshot(made, into, { stop: true }, hooksOf(machine));
    // It stands still until the caller has written it down.
    expect(await processesOf(lab.tag)).toHaveLength(1);
    await expect(call(machine, "/counter", "", 500)).rejects.toThrow("no answer");
    await driver.stopMachine(made);
    expect(await processesOf(lab.tag)).toEqual([]);
    const { blocks } = await stat(snapshotPaths(into.dir).memory);
    expect(blocks * 512).toBeLessThan(LAB_RESOURCES.memoryMb * 1024 * 1024);

    driver = newDriver();
    const resumed = await driver.restore(made, into, LAB_RESOURCES);
    expect(await counter(resumed)).toBe(2);
    expect((await runIn(resumed, "cat /mnt/disk/file")).stdout).toBe("asleep\n");
  });

  it("runs on where an update made another kernel, which new ones have; a suspended one keeps its own", async () => {
    const { made, machine } = await create("sbx-old");
    const { made: asleep, machine: slept } = await create("sbx-asleep");
    for (const one of [machine, slept]) expect(await counter(one)).toBe(1);
    const pid = await pidOf(made);
    const into = { dir: await lab.directory("of-the-old-kernel") };
    await driver.snapshot(asleep, into, { stop: true }, hooksOf(slept));
    await driver.stopMachine(asleep);

    // What `cloche update` and the next start make: another artifact, which all that boots comes from.
    const old = lab.platform.kernel;
    const another = { ...old, key: `updated-${old.release}`, kernel: join(lab.home, "another-kernel") };
    await copyFile(old.kernel, another.kernel);
    platform = { ...lab.platform, kernel: another };
    await driver.stop();
    driver = newDriver();
    await driver.start();
    // The old template is gone.
    expect(await readdir(join(lab.pool.dir, "vm-templates"))).toEqual([
      templateKey(platform, shapeOf(LAB_RESOURCES)),
    ]);

    const kernelOf = async (one: MachineFiles) => (await readVmRecord(one.dir))?.bootedFrom.kernel;
    expect(await driver.adopt(made)).toEqual(machine);
    expect([await pidOf(made), await counter(machine), await kernelOf(made)]).toEqual([pid, 2, old.key]);
    const { made: fresh, machine: next } = await create("sbx-new");
    expect([await counter(next), await kernelOf(fresh)]).toEqual([1, another.key]);
    const resumed = await driver.restore(asleep, into, LAB_RESOURCES);
    // With its memory, and by that name `cloche prune-cache` keeps the artifact.
    expect([await counter(resumed), await kernelOf(asleep)]).toEqual([2, old.key]);
    expect((await runIn(resumed, "uname -r")).stdout).toBe(`${old.release}\n`);
  });

  it("has the right time soon after a resume, without being told", async () => {
    const { made, machine } = await create("sbx-clock");
    const into = { dir: await lab.directory("clock") };
    await driver.snapshot(made, into, { stop: true }, hooksOf(machine));
    await driver.stopMachine(made);
    await new Promise((resolve) => setTimeout(resolve, 4_000));
    const resumed = await driver.restore(made, into, LAB_RESOURCES);
    const errorSeconds = async (): Promise<number> => {
      const before = Date.now();
      const guestMs = Number((await runIn(resumed, "date +%s")).stdout) * 1_000;
      const now = Date.now();
      return Math.max(before - 1_000 - guestMs, guestMs - now, 0) / 1_000;
    };
    await expect.poll(errorSeconds, { timeout: 20_000 }).toBeLessThan(2);
  });

  it("lets a machine go on that was paused for a suspension which did not come about", async () => {
    const { made, machine } = await create("sbx-unblock");
    const into = { dir: await lab.directory("unblocked") };
    await driver.snapshot(made, into, { stop: true }, hooksOf(machine));
    // The service ends here; the next one finds it paused.
    await driver.stop();
    driver = newDriver();
    expect(await driver.adopt(made)).toEqual(machine);
    await driver.unblock(made);
    await driver.unblock(made);
    expect(await counter(machine)).toBe(1);
  });

  it("is adopted by the next service, which it never noticed the lack of", async () => {
    const { made, machine } = await create("sbx-adopt");
    await counter(machine);
    await driver.stop();
    driver = newDriver();
    expect(await driver.adopt(made)).toEqual(machine);
    expect(await counter(machine)).toBe(2);
    const { cpuMs, memoryBytes, processes } = await driver.stats(made);
    expect([cpuMs > 0, memoryBytes > 20_000_000, processes]).toEqual([true, true, 1]);
    await driver.stopMachine(made);
    expect(await driver.adopt(made)).toBeUndefined();
  });

  describe("faults", () => {
    it("tells of a QEMU that was killed", async () => {
      const { made } = await create("sbx-killed");
      process.kill(await pidOf(made), "SIGKILL");
      await expect
        .poll(() => exits, { timeout: 10_000 })
        .toEqual([["sbx-killed", "the machine's process was killed"]]);
      await expect(driver.stats(made)).rejects.toMatchObject({ code: "failed_precondition" });
    });

    it("ends a QEMU that hangs", async () => {
      const { made } = await create("sbx-hung");
      await driver.start();
      process.kill(await pidOf(made), "SIGSTOP");
      await expect
        .poll(() => exits, { timeout: 30_000 })
        .toEqual([["sbx-hung", "the machine stopped answering"]]);
      await driver.stop();
    });

    it("tells of a panic of the guest's kernel", async () => {
      const { machine } = await create("sbx-panic");
      void runIn(machine, "echo c > /proc/sysrq-trigger").catch(() => undefined);
      await expect
        .poll(() => exits, { timeout: 20_000 })
        .toEqual([["sbx-panic", "the kernel of the machine panicked"]]);
    });

    it("tells of an agent that was killed in the guest", async () => {
      const { machine } = await create("sbx-agent");
      void runIn(machine, "killall -9 node").catch(() => undefined);
      await expect
        .poll(() => exits, { timeout: 20_000 })
        .toEqual([["sbx-agent", "the machine's process ended: it shut itself down, or its agent ended"]]);
    });

    it("does not adopt a machine that is of no use, and leaves nothing of it running", async () => {
      const { made } = await create("sbx-useless");
      await driver.stop();
      process.kill(await pidOf(made), "SIGSTOP");
      driver = newDriver();
      expect(await driver.adopt(made)).toBeUndefined();
      expect(await processesOf(lab.tag)).toEqual([]);
    });

    it("refuses a truncated snapshot before anything starts, and the machine can start from its disk", async () => {
      const { made, machine } = await create("sbx-cut");
      await runIn(machine, "echo safe > /mnt/disk/file");
      const into = { dir: await lab.directory("cut") };
      await driver.snapshot(made, into, { stop: true }, hooksOf(machine));
      await driver.stopMachine(made);
      await truncate(snapshotPaths(into.dir).memory, 100_000);
      const refused = driver.restore(made, into, LAB_RESOURCES);
      await expect(refused).rejects.toMatchObject({ code: "failed_precondition" });
      await expect(refused).rejects.toThrow("its memory is incomplete");
      expect(lab.network.leased.size).toBe(0);
      const cold = await driver.create(made, LAB_RESOURCES);
      expect((await runIn(cold, `${MOUNT} && cat /mnt/disk/file`)).stdout).toBe("safe\n");
    });

    it("survives a snapshot for which there is no room", async () => {
      const { made, machine } = await create("sbx-full");
      await call(machine, "/ballast", "90");
      await runIn(machine, "sync");
      const into = { dir: await lab.directory("full") };
      const fillers = fillUp(join(lab.home, "pool"));
      try {
        const failed = driver.snapshot(made, into, { stop: false }, hooksOf(machine));
        await expect(failed).rejects.toMatchObject({ code: "resource_exhausted", resource: "disk" });
        expect(await readdir(into.dir)).toEqual([]);
      } finally {
        execFileSync("rm", ["-rf", fillers]);
      }
      expect(await counter(machine)).toBe(1);
      await driver.snapshot(made, into, { stop: false }, hooksOf(machine));
    });

    it("sweeps what a machine left that nobody knows, and nothing else", async () => {
      const { made: known } = await create("sbx-known");
      const { made: stray } = await create("sbx-stray");
      await driver.stop();
      driver = newDriver();
      expect(await driver.sweep(new Set([known.id]))).toEqual(["sbx-stray"]);
      expect(await processesOf(lab.tag)).toEqual([known.id]);
      expect(existsSync(`/sys/fs/cgroup/memory${vmCgroupPath(lab.tag, stray.id)}`)).toBe(false);
    });

    it("takes a half-made machine away, repeatedly", async () => {
      const made = await files("sbx-half");
      await driver.destroy(made);
      const machine = await driver.create(made, LAB_RESOURCES);
      expect(await counter(machine)).toBe(1);
      await driver.destroy(made);
      await driver.destroy(made);
    });
  });
});

/**
 * Leaves some 8 MiB free: room for names and clones, none for what was changed. Space of removed files comes back late, so asking
 * for what is free once is not enough.
 */
function fillUp(pool: string): string {
  const fillers = join(pool, "fillers");
  const spare = join(pool, "spare");
  execFileSync("mkdir", [fillers]);
  execFileSync("fallocate", ["-l", "8MiB", spare]);
  // XFS frees what was removed a little later: full is what still is so after a sync.
  for (let made = 0, before = -1; made > before; ) {
    before = made;
    for (let megabytes = 8_192; megabytes >= 1; ) {
      try {
        execFileSync("fallocate", ["-l", `${megabytes}M`, join(fillers, String(made))], { stdio: "ignore" });
        made += 1;
      } catch {
        megabytes /= 2;
      }
    }
    execFileSync("sync", ["-f", pool]);
  }
  execFileSync("rm", [spare]);
  execFileSync("sync", ["-f", pool]);
  return fillers;
}
