// net.ipv4.ip_forward of the host, needed for egress and shared by all instances of the machine: the first one in turns it
// on and keeps the former value, the last one out restores it. An instance counts as long as its router namespace exists.
//
// What survives a crash: the markers in RUN_DIR. A boot resets the setting, so markers of an earlier boot do not count.
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { withFileLock } from "../artifacts/file-lock.ts";

const SYSCTL = "/proc/sys/net/ipv4/ip_forward";
const BOOT_ID = "/proc/sys/kernel/random/boot_id";
const FORMER = "former";

export interface ForwardingPlace {
  /** Holds the markers of this network namespace. */
  readonly runDir: string;
  /** Names of the router namespaces that exist. */
  readonly routers: () => Promise<readonly string[]>;
}

/** Turns forwarding on for the instance of this router namespace. Repeatable. */
export function enableForwarding(place: ForwardingPlace, router: string): Promise<void> {
  return withFileLock(join(place.runDir, ".lock"), async () => {
    const boot = await readFile(BOOT_ID, "utf8");
    await dropStale(place, boot);
    const former = await readFile(join(place.runDir, FORMER), "utf8").catch(() => undefined);
    if (former === undefined)
      await writeFile(join(place.runDir, FORMER), (await readFile(SYSCTL, "utf8")).trim());
    await writeFile(join(place.runDir, router), boot);
    await writeFile(SYSCTL, "1");
  });
}

/** Takes the instance out; the former value comes back with the last one. Repeatable. */
export function disableForwarding(place: ForwardingPlace, router: string): Promise<void> {
  return withFileLock(join(place.runDir, ".lock"), async () => {
    await dropStale(place, await readFile(BOOT_ID, "utf8"));
    await rm(join(place.runDir, router), { force: true });
    if ((await markers(place)).length > 0) return;
    const former = await readFile(join(place.runDir, FORMER), "utf8").catch(() => undefined);
    if (former === undefined) return;
    await writeFile(SYSCTL, former);
    await rm(place.runDir, { recursive: true, force: true });
  });
}

const markers = async (place: ForwardingPlace) =>
  (await readdir(place.runDir)).filter((name) => name !== FORMER && name !== ".lock");

async function dropStale(place: ForwardingPlace, boot: string): Promise<void> {
  await mkdir(place.runDir, { recursive: true });
  const routers = new Set(await place.routers());
  for (const name of await markers(place)) {
    const marker = await readFile(join(place.runDir, name), "utf8");
    if (marker !== boot) {
      // Another boot: nothing that we wrote down is true any more.
      for (const old of await readdir(place.runDir)) if (old !== ".lock") await rm(join(place.runDir, old));
      return;
    }
    if (!routers.has(name)) await rm(join(place.runDir, name), { force: true });
  }
}
