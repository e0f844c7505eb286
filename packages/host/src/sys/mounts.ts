/** Reads mounts, and the files behind loop devices, from the kernel. */
import { readdir, readFile } from "node:fs/promises";

export interface Mount {
  readonly mountPoint: string;
  readonly fsType: string;
  /** For example /dev/loop3. */
  readonly source: string;
  /** Major and minor number of the file system, for example "7:3" for /dev/loop3. */
  readonly device: string;
  readonly options: readonly string[];
}

export interface LoopDevice {
  /** For example /dev/loop3. */
  readonly path: string;
  readonly device: string;
  /** Ends in " (deleted)" when the file is gone. */
  readonly backingFile: string;
}

/** Mounts of this process's mount namespace, in the order they were made. */
export async function listMounts(): Promise<Mount[]> {
  return parseMountinfo(await readFile("/proc/self/mountinfo", "utf8"));
}

/** The mount that is visible at `mountPoint`, if any. The path must have no symlinks in it. */
export async function mountAt(mountPoint: string): Promise<Mount | undefined> {
  return (await listMounts()).findLast((mount) => mount.mountPoint === mountPoint);
}

export function parseMountinfo(text: string): Mount[] {
  const mounts: Mount[] = [];
  for (const line of text.split("\n")) {
    // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    const [left, right] = line.split(" - ");
    const fields = left?.split(" ") ?? [];
    const [fsType, source, superOptions] = right?.split(" ") ?? [];
    if (fields.length < 6 || !fsType) continue;
    mounts.push({
      mountPoint: unescape(fields[4] ?? ""),
      fsType,
      source: unescape(source ?? ""),
      device: fields[2] ?? "",
      options: [...(fields[5] ?? "").split(","), ...(superOptions ?? "").split(",")],
    });
  }
  return mounts;
}

/** Loop devices in use. */
export async function listLoopDevices(): Promise<LoopDevice[]> {
  const loops: LoopDevice[] = [];
  for (const name of await readdir("/sys/block")) {
    if (!name.startsWith("loop")) continue;
    try {
      const backingFile = await readFile(`/sys/block/${name}/loop/backing_file`, "utf8");
      const device = await readFile(`/sys/block/${name}/dev`, "utf8");
      loops.push({ path: `/dev/${name}`, device: device.trim(), backingFile: backingFile.trimEnd() });
    } catch {
      // Not attached, or detached while we looked.
    }
  }
  return loops;
}

/** The kernel writes space, tab, newline and backslash as octal. */
function unescape(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}
