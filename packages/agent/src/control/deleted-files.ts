import { readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";

const pathsMax = 100;

/**
 * Files of the disk that some process still holds open (or maps, or runs, or stands in) though they were deleted or renamed
 * over. A memory snapshot of gVisor cannot carry them (guest.proto, PrepareSnapshot). At most 100 paths, each once.
 */
export function deletedButOpen(diskPath: string, procPath = "/proc"): string[] {
  const disk = statSync(diskPath).dev;
  const found = new Set<string>();
  for (const pid of readdirSync(procPath)) {
    if (!/^[0-9]+$/.test(pid)) continue;
    const home = `${procPath}/${pid}`;
    for (const link of [`${home}/cwd`, `${home}/exe`, ...descriptors(home)]) {
      const target = deletedTarget(link, disk);
      if (target !== undefined) found.add(target);
    }
    for (const target of deletedMappings(home, disk)) found.add(target);
    if (found.size >= pathsMax) break;
  }
  return [...found].slice(0, pathsMax);
}

function descriptors(home: string): string[] {
  try {
    return readdirSync(`${home}/fd`).map((fd) => `${home}/fd/${fd}`);
  } catch {
    return []; // it ended, or is a zombie
  }
}

function deletedTarget(link: string, disk: number): string | undefined {
  try {
    const target = readlinkSync(link);
    if (!target.endsWith(deletedMark)) return undefined;
    return statSync(link).dev === disk ? target.slice(0, -deletedMark.length) : undefined;
  } catch {
    return undefined;
  }
}

/** Lines of /proc/<pid>/maps: address, permissions, offset, device, inode, path. The device is in hex, major:minor. */
function deletedMappings(home: string, disk: number): string[] {
  let maps: string;
  try {
    maps = readFileSync(`${home}/maps`, "latin1");
  } catch {
    return [];
  }
  if (!maps.includes(deletedMark)) return [];
  const paths: string[] = [];
  for (const line of maps.split("\n")) {
    if (!line.endsWith(deletedMark)) continue;
    const [, , , device = "", , ...path] = line.split(/ +/);
    const [major = 0, minor = 0] = device.split(":").map((part) => Number.parseInt(part, 16));
    if (deviceNumber(major, minor) === disk) paths.push(path.join(" ").slice(0, -deletedMark.length));
  }
  return paths;
}

const deletedMark = " (deleted)";
/** Linux's encoding of a device number in stat. */
const deviceNumber = (major: number, minor: number): number =>
  ((minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)) >>> 0;
