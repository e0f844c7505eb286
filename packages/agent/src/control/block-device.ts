import { execFile } from "node:child_process";
import { mkdirSync } from "node:fs";
import { promisify } from "node:util";
import { ClocheError } from "@cloche/protocol";

const run = promisify(execFile);

/** Mounts a VM's disk (guest.proto, block_device). On gVisor the host mounts it from outside and this is not used. */
export async function mountDisk(device: string, diskPath: string): Promise<void> {
  if (!/^\/dev\/[a-z0-9/]+$/i.test(device)) {
    throw new ClocheError("invalid_argument", "blockDevice must be a path under /dev");
  }
  mkdirSync(diskPath, { recursive: true });
  await command("mount", ["-t", "ext4", "-o", "noatime", device, diskPath]);
}

export const unmountDisk = (diskPath: string): Promise<void> => command("umount", [diskPath]);

export const syncDisks = (): Promise<void> => command("sync", []);

/** Sets the machine's clock; milliseconds since 1970. */
export const setClock = (wallClockMs: number): Promise<void> =>
  command("date", ["-u", "-s", `@${(wallClockMs / 1000).toFixed(3)}`]);

async function command(program: string, args: string[]): Promise<void> {
  try {
    await run(program, args, { timeout: 30_000 });
  } catch (error) {
    throw new ClocheError("internal", `${program} failed in the machine`, { cause: error });
  }
}
