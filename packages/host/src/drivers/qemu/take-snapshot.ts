/**
 * Saves memory and disk of a running machine at one instant. Slow steps are done before the pause (sync guest and host disks,
 * clone base memory, touch the buffer) or after it (write and sync changed pages).
 */
import { chmod, chown, copyFile, rename, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { CleanupStack, syncDirectory, syncFile } from "@cloche/base";
import type { SnapshotHooks, SnapshotFiles } from "../driver.ts";
import { vmFiles } from "./command-line.ts";
import type { VmEnvironment } from "./environment.ts";
import { MemoryCapture } from "./memory-capture.ts";
import { needingRoom, hardLink, reflink } from "./reflink.ts";
import { sealSnapshot, snapshotPaths } from "./snapshot-files.ts";
import type { Vm } from "./vm.ts";

/** Everything in `into` is durable when it resolves. When it throws, `into` has no file of ours and the machine runs. */
export function takeSnapshot(
  environment: VmEnvironment,
  vm: Vm,
  into: SnapshotFiles,
  options: { stop: boolean },
  hooks: SnapshotHooks,
): Promise<{ pauseMs: number }> {
  const paths = snapshotPaths(into.dir);
  return CleanupStack.guard(async (stack) => {
    stack.push("snapshot", async () => {
      for (const path of Object.values(paths)) await rm(path, { force: true });
    });
    const baseMemory = join(vm.directory, vmFiles.baseMemory);
    await hooks.flush();
    await needingRoom("a snapshot", async () => {
      await reflink(baseMemory, paths.memory);
      await chmod(paths.memory, 0o600);
      await syncFile(vm.diskPath);
    });
    const { ino: inode } = await stat(baseMemory, { bigint: true });
    const program = environment.platform.tools.pages;
    const capture = await MemoryCapture.prepare({ program, pid: vm.pid, inode, output: paths.memory });
    stack.push("memory capture", () => capture.abandon());

    const started = performance.now();
    stack.push("pause", () => vm.resume());
    await vm.pause();
    await needingRoom("a snapshot", () =>
      allOrFirstError([vm.saveDevices(), capture.copy(), reflink(vm.diskPath, paths.disk)]),
    );
    if (!options.stop) await vm.resume();
    const pauseMs = performance.now() - started;

    await capture.finish();
    await needingRoom("a snapshot", async () => {
      await copyFile(join(vm.directory, vmFiles.devices), paths.devices);
      for (const path of [paths.devices, paths.disk]) await ownByRoot(path, 0o600);
      await ownByRoot(paths.memory, 0o444);
      for (const path of [paths.devices, paths.disk]) await syncFile(path);
      await hardLink(join(vm.directory, vmFiles.system), paths.system);
      await sealSnapshot(into.dir, environment.platform, {
        shape: vm.record.shape,
        bootedFrom: vm.record.bootedFrom,
        diskBytes: (await stat(paths.disk)).size,
        createdAt: new Date().toISOString(),
        agentPort: vm.agentPort,
      });
    });
    return { pauseMs };
  });
}

/** Clones only the disk, at one instant, to `toImage`. */
export function takeDiskCheckpoint(
  vm: Vm,
  toImage: string,
  hooks: SnapshotHooks,
): Promise<{ pauseMs: number }> {
  return CleanupStack.guard(async (stack) => {
    await hooks.flush();
    await needingRoom("a checkpoint", () => syncFile(vm.diskPath));
    const unfinished = `${toImage}.new`;
    await rm(unfinished, { force: true });
    stack.push("clone of the disk", () => rm(unfinished, { force: true }));
    const started = performance.now();
    stack.push("pause", () => vm.resume());
    await vm.pause();
    await needingRoom("a checkpoint", () => reflink(vm.diskPath, unfinished));
    await vm.resume();
    const pauseMs = performance.now() - started;
    await ownByRoot(unfinished, 0o600);
    await syncFile(unfinished);
    await rename(unfinished, toImage);
    await syncDirectory(dirname(toImage));
    return { pauseMs };
  });
}

async function ownByRoot(path: string, mode: number): Promise<void> {
  await chown(path, 0, 0);
  await chmod(path, mode);
}

/** Waits for all, so that none is still under way; then throws the first failure. */
async function allOrFirstError(promises: Promise<unknown>[]): Promise<void> {
  const results = await Promise.allSettled(promises);
  const failed = results.find((result) => result.status === "rejected");
  if (failed) throw failed.reason;
}
