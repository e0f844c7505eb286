import { readdirSync, readFileSync, readlinkSync, type Stats, statSync } from "node:fs";

const pathsMax = 100;

/** Deleted or replaced files of the disk that a process still has open, mapped, as its program or as its directory. */
export interface DeletedFiles {
  /** Neither regular files nor directories: a memory snapshot of gVisor cannot save them. At most 100 paths. */
  blockingPaths: string[];
  /** Size of the regular files, which are saved in the snapshot with their holes filled. */
  bytes: number;
  /** Paths of the regular files, largest first. At most 100. */
  paths: string[];
}

/** See guest.proto, PrepareSnapshot. */
export function deletedButOpen(diskPath: string, procPath = "/proc"): DeletedFiles {
  const disk = statSync(diskPath).dev;
  const blocking = new Set<string>();
  const regular = new Map<number, { path: string; bytes: number }>();
  for (const pid of readdirSync(procPath)) {
    if (!/^[0-9]+$/.test(pid)) continue;
    const home = `${procPath}/${pid}`;
    for (const link of [`${home}/cwd`, `${home}/exe`, ...descriptors(home)]) {
      const found = deletedTarget(link, disk);
      if (found === undefined || found.stats.isDirectory()) continue;
      if (found.stats.isFile()) regular.set(found.stats.ino, { path: found.path, bytes: found.stats.size });
      else blocking.add(found.path);
    }
    for (const { inode, ...file } of deletedMappings(home, disk)) {
      const known = regular.get(inode);
      if (known === undefined || known.bytes < file.bytes) regular.set(inode, file);
    }
  }
  const files = [...regular.values()].sort((a, b) => b.bytes - a.bytes);
  return {
    blockingPaths: [...blocking].slice(0, pathsMax),
    bytes: files.reduce((sum, { bytes }) => sum + bytes, 0),
    paths: files.slice(0, pathsMax).map(({ path }) => path),
  };
}

function descriptors(home: string): string[] {
  try {
    return readdirSync(`${home}/fd`).map((fd) => `${home}/fd/${fd}`);
  } catch {
    return []; // the process ended or is a zombie
  }
}

function deletedTarget(link: string, disk: number): { path: string; stats: Stats } | undefined {
  try {
    const target = readlinkSync(link);
    if (!target.endsWith(deletedMark)) return undefined;
    const stats = statSync(link);
    return stats.dev === disk ? { path: target.slice(0, -deletedMark.length), stats } : undefined;
  } catch {
    return undefined;
  }
}

/** Lines of /proc/<pid>/maps: address, permissions, offset, device, inode, path. All numbers except the inode are in hex. */
function deletedMappings(home: string, disk: number): { inode: number; path: string; bytes: number }[] {
  let maps: string;
  try {
    maps = readFileSync(`${home}/maps`, "latin1");
  } catch {
    return [];
  }
  if (!maps.includes(deletedMark)) return [];
  const found: { inode: number; path: string; bytes: number }[] = [];
  for (const line of maps.split("\n")) {
    if (!line.endsWith(deletedMark)) continue;
    const [range = "", , offset = "", device = "", inode, ...path] = line.split(/ +/);
    const [major = 0, minor = 0] = device.split(":").map((part) => Number.parseInt(part, 16));
    if (deviceNumber(major, minor) !== disk) continue;
    const [from = 0, to = 0] = range.split("-").map((part) => Number.parseInt(part, 16));
    found.push({
      inode: Number(inode),
      path: path.join(" ").slice(0, -deletedMark.length),
      bytes: Number.parseInt(offset, 16) + to - from, // the file has at least about as many
    });
  }
  return found;
}

const deletedMark = " (deleted)";
/** Linux's encoding of a device number in stat. */
const deviceNumber = (major: number, minor: number): number =>
  ((minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)) >>> 0;
