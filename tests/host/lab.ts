// A throw-away CLOCHE_HOME on the real machine, with the compiled cloche-sys, and a count of what it leaves behind.
import { realpathSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect } from "vitest";
import { obtainNative } from "../../packages/artifacts/src/programs/programs.ts";
import { instanceTag } from "../../packages/host/src/sys/instance.ts";
import { countInstanceInventory, listInstanceInventory } from "../fixtures/instance-inventory.ts";
import { Native } from "../../packages/host/src/sys/native.ts";

export const cacheDir = process.env["CLOCHE_CACHE"] || "/var/tmp/cloche-cache";
const LEFTOVER_PATIENCE_MS = 10_000;
export const MIB = 1024 * 1024;
export const GIB = 1024 * MIB;

/** Why the tests of this folder cannot run here, if so. */
export const cannotRun =
  process.getuid?.() === 0 ? undefined : "needs root: mounts, loop devices, namespaces";

export interface Lab {
  readonly home: string;
  readonly tag: string;
  readonly native: Native;
  readonly nativeProgram: string;
  readonly progress: () => void;
  /** Ends cloche-sys, checks that nothing of this home is left on the machine, and deletes it. */
  close(): Promise<void>;
}

export async function openLab(): Promise<Lab> {
  const home = realpathSync(await mkdtemp("/var/tmp/cloche-test-"));
  const nativeProgram = await obtainNative(cacheDir, () => {});
  const native = new Native(nativeProgram);
  const tag = instanceTag(home);
  const close = async () => {
    await native.close();
    // A program that another test started in a mount namespace of its own may hold a copy of ours for a moment.
    let left = await listInstanceInventory(home, tag);
    for (let waited = 0; countInstanceInventory(left) > 0 && waited < LEFTOVER_PATIENCE_MS; waited += 100) {
      await sleep(100);
      left = await listInstanceInventory(home, tag);
    }
    expect(countInstanceInventory(left), JSON.stringify(left)).toBe(0);
    await rm(home, { recursive: true });
  };
  return { home, tag, native, nativeProgram, progress: () => {}, close };
}

export const inHome = (lab: Lab, ...parts: string[]) => join(lab.home, ...parts);
