import { execFile } from "node:child_process";
import { mkdirSync } from "node:fs";
import { promisify } from "node:util";
import { ClocheError } from "@cloche/protocol";

const run = promisify(execFile);

/** Mounts a VM's disk (guest.proto, block_device). On gVisor the host mounts it from outside and nothing here is used. */
export async function mountDisk(device: string, diskPath: string): Promise<void> {
  if (!/^\/dev\/[a-z0-9/]+$/i.test(device)) {
    throw new ClocheError("invalid_argument", "blockDevice must be a path under /dev");
  }
  mkdirSync(diskPath, { recursive: true });
  await command("mount", ["-t", "ext4", "-o", "noatime", device, diskPath]);
}

const unmountAttempts = 40;

/** The kernel lets go of a disk a moment after the last process that stood on it. */
export async function unmountDisk(diskPath: string): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      await command("umount", [diskPath]);
      return;
    } catch (error) {
      if (attempt === unmountAttempts) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

/** Sets a VM's clock; `guestProgram` is the native program, `monotonicMs` the monotonic clock at `wallClockMs`. */
export const setClock = (guestProgram: string, wallClockMs: number, monotonicMs: number): Promise<void> =>
  command(guestProgram, ["set-clock", (wallClockMs - monotonicMs).toFixed(3)]);

async function command(program: string, args: string[]): Promise<void> {
  try {
    await run(program, args, { timeout: 30_000 });
  } catch (error) {
    throw new ClocheError("internal", `${program} failed in the machine`, { cause: error });
  }
}
