/**
 * What keeps a mount busy, for an operator: loop devices of files on it, mounts of these, and processes that have it open.
 */
import { readdir, readFile, readlink } from "node:fs/promises";
import { listLoopDevices, listMounts, parseMountinfo } from "./mounts.ts";

const usersShown = 8;

/** One line for each user of the mount at `dir`, for example `process 4711 (bash) has its directory /var/lib/cloche/pool`. */
export async function mountUsers(dir: string): Promise<string[]> {
  const isBelow = (path: string): boolean => path === dir || path.startsWith(`${dir}/`);
  const users = [...(await loopUsers(isBelow)), ...(await processUsers(dir, isBelow))];
  return users.length > usersShown
    ? [...users.slice(0, usersShown), `and ${users.length - usersShown} more`]
    : users;
}

type IsBelow = (path: string) => boolean;

async function loopUsers(isBelow: IsBelow): Promise<string[]> {
  const mounts = await listMounts();
  return (await listLoopDevices())
    .filter(({ backingFile }) => isBelow(backingFile))
    .map(({ path, device, backingFile }) => {
      const at = mounts.find((mount) => mount.device === device);
      return `${path} is attached to ${backingFile}${at === undefined ? "" : `, mounted at ${at.mountPoint}`}`;
    });
}

async function processUsers(dir: string, isBelow: IsBelow): Promise<string[]> {
  const ownMounts = await readlink("/proc/self/ns/mnt").catch(() => "");
  const seen = new Set<string>();
  const users: string[] = [];
  const copies: string[] = [];
  for (const pid of (await readdir("/proc")).filter((name) => /^\d+$/.test(name))) {
    const use = await useOf(pid, isBelow);
    const place = await readlink(`/proc/${pid}/ns/mnt`).catch(() => "");
    const isCopy = use === undefined && place !== ownMounts && !seen.has(place) && (await hasCopy(pid, dir));
    seen.add(place);
    if (use === undefined && !isCopy) continue;
    const name = (await readFile(`/proc/${pid}/comm`, "utf8").catch(() => "")).trim();
    if (use !== undefined) users.push(`process ${pid} (${name}) ${use}`);
    else copies.push(`process ${pid} (${name}) has a copy of the mount ${dir} in its own mount namespace`);
  }
  // A copy mostly goes with the mount, so that copies are named only when nothing else is found.
  return users.length > 0 ? users : copies;
}

async function useOf(pid: string, isBelow: IsBelow): Promise<string | undefined> {
  for (const [link, does] of [
    ["cwd", "has its directory"],
    ["root", "has its root"],
    ["exe", "runs"],
  ] as const) {
    const path = await readlink(`/proc/${pid}/${link}`).catch(() => "");
    if (isBelow(path)) return `${does} ${path}`;
  }
  for (const fd of await readdir(`/proc/${pid}/fd`).catch(() => [])) {
    const path = await readlink(`/proc/${pid}/fd/${fd}`).catch(() => "");
    if (isBelow(path)) return `has ${path} open`;
  }
  const maps = await readFile(`/proc/${pid}/maps`, "utf8").catch(() => "");
  const mapped = maps
    .split("\n")
    .map((line) => line.slice(line.indexOf("/")))
    .find(isBelow);
  return mapped === undefined ? undefined : `has ${mapped} in its memory`;
}

async function hasCopy(pid: string, dir: string): Promise<boolean> {
  const text = await readFile(`/proc/${pid}/mountinfo`, "utf8").catch(() => "");
  return parseMountinfo(text).some(({ mountPoint, fsType }) => mountPoint.endsWith(dir) && fsType === "xfs");
}
