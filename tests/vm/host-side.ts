// What lies below a virtual machine on the host: its QEMU, its files, and the room on the pool.
import { execFileSync, spawnSync } from "node:child_process";
import { closeSync, mkdirSync, openSync, readdirSync, rmSync, statfsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { markedProcesses } from "../../packages/host/src/drivers/qemu/driver.ts";
import type { TestSandbox } from "../conformance/session.ts";
import { tagOf } from "../fixtures/inventory.ts";

const MIB = 1024 * 1024;
/** Less than a service needs to begin anything, more than guests write meanwhile. */
const FULL_BELOW = 96 * MIB;
const FILL_TRIES = 20;

/** Pids of the QEMU of a sandbox. */
export async function qemusOf(home: string, { id }: TestSandbox): Promise<number[]> {
  const machines = await markedProcesses(tagOf(home));
  return machines.filter((one) => one.id === id).map(({ pid }) => pid);
}

export const machineFolders = (home: string): string[] => readdirSync(join(home, "pool/machines"));

/** A file of a suspended machine: its `memory`, its `disk.ext4`. */
export function snapshotFile(home: string, { id }: TestSandbox, name: string): string {
  const machine = join(home, "pool/machines", id);
  const snapshot = readdirSync(machine).find((one) => one.startsWith("snapshot-")) ?? "";
  return join(machine, snapshot, name);
}

export const checkpointImage = (home: string, checkpointId: string): string =>
  join(home, "pool/checkpoints", checkpointId, "disk.img");

/** Takes away what makes it an ext4 file system. */
export function wipeSuperblock(image: string): void {
  const file = openSync(image, "r+");
  try {
    writeSync(file, Buffer.alloc(1_024), 0, 1_024, 1_024);
  } finally {
    closeSync(file);
  }
}

/** Leaves no room on the pool for anything new. Answers what gives it back. */
export function fillPool(home: string): () => void {
  const pool = join(home, "pool");
  const fillers = join(pool, "fillers");
  const room = (): number => {
    // Space of removed files comes back late.
    execFileSync("sync", ["-f", pool]);
    const { bavail, bsize } = statfsSync(pool);
    return bavail * bsize;
  };
  mkdirSync(fillers);
  const giveBack = (): void => rmSync(fillers, { recursive: true, force: true });
  try {
    for (let tries = 1, free = room(); free > FULL_BELOW; tries += 1, free = room()) {
      const words = ["-l", String(free - FULL_BELOW / 2), join(fillers, String(tries))];
      // Others take room meanwhile.
      const { status, stderr } = spawnSync("fallocate", words, { encoding: "utf8" });
      if (status !== 0 && tries >= FILL_TRIES) throw new Error(`the pool cannot be filled: ${stderr}`);
    }
  } catch (error) {
    giveBack();
    throw error;
  }
  return giveBack;
}
