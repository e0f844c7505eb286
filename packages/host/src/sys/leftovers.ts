// Everything an instance has on the machine at this moment: counted by tests before and after, and by `down` at its end.
import { readdir } from "node:fs/promises";
import { listLoopDevices, listMounts } from "./mounts.ts";
import { run } from "./run.ts";

export interface Leftovers {
  readonly mounts: readonly string[];
  readonly loopDevices: readonly string[];
  readonly namespaces: readonly string[];
  readonly links: readonly string[];
  readonly nftTables: readonly string[];
  readonly routes: readonly string[];
}

/** `home`: real path of CLOCHE_HOME. `tag`: its instance tag. */
export async function listLeftovers(home: string, tag: string): Promise<Leftovers> {
  const [mounts, loops, namespaces, links, tables, routes] = await Promise.all([
    listMounts(),
    listLoopDevices(),
    readdir("/run/netns").catch(() => []),
    run(["ip", "-o", "link"]).then(({ stdout }) => stdout.split("\n")),
    run(["nft", "list", "tables"]).then(({ stdout }) => stdout.split("\n")),
    run(["ip", "-o", "route"]).then(({ stdout }) => stdout.split("\n")),
  ]);
  const uplink = `cl-${tag}`;
  return {
    mounts: mounts.map((mount) => mount.mountPoint).filter((path) => path.startsWith(`${home}/`)),
    loopDevices: loops.map((loop) => loop.backingFile).filter((path) => path.startsWith(`${home}/`)),
    namespaces: namespaces.filter((name) => name === `cloche-${tag}` || name.startsWith(`cl-${tag}-`)),
    links: links.filter((line) => line.includes(uplink)),
    nftTables: tables.filter((line) => line.includes(`cloche_${tag}`)),
    routes: routes.filter((line) => line.includes(uplink)),
  };
}

export function countLeftovers(leftovers: Leftovers): number {
  return Object.values(leftovers).reduce((sum, list) => sum + list.length, 0);
}
