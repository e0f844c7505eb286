/**
 * net.ipv4.ip_forward of the host, which egress needs and all instances on the computer share. The first instance turns it on and
 * keeps the former value; the last one restores that. An instance counts as long as its router namespace exists.
 *
 * The markers in `runDir` survive a crash. A boot resets the setting, so markers of an earlier boot do not count.
 */
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { withFileLock } from "@cloche/base/file-lock";

const sysctl = "/proc/sys/net/ipv4/ip_forward";
const bootId = "/proc/sys/kernel/random/boot_id";
const formerFile = "former";

export interface ForwardingPlace {
  /** Directory with the markers of this network namespace. */
  readonly runDir: string;
  /** Names of the router namespaces that exist. */
  readonly routers: () => Promise<readonly string[]>;
}

/** Turns forwarding on for the instance of this router namespace. Repeatable. */
export function enableForwarding(place: ForwardingPlace, router: string): Promise<void> {
  return withFileLock(join(place.runDir, ".lock"), async () => {
    await mkdir(place.runDir, { recursive: true });
    const boot = await readFile(bootId, "utf8");
    const former = join(place.runDir, formerFile);
    // Without any other instance the present value is the former one.
    if ((await living(place, boot, [router])).length === 0)
      await writeFile(former, (await readFile(sysctl, "utf8")).trim());
    await writeFile(join(place.runDir, router), boot);
    await writeFile(sysctl, "1");
  });
}

/** Removes the instance; the last one restores the former value. Repeatable. */
export function disableForwarding(place: ForwardingPlace, router: string): Promise<void> {
  return withFileLock(join(place.runDir, ".lock"), async () => {
    const boot = await readFile(bootId, "utf8");
    const counted = await living(place, boot, [router]);
    await rm(join(place.runDir, router), { force: true });
    if (!counted.includes(router) || counted.length > 1) return;
    await writeFile(sysctl, await readFile(join(place.runDir, formerFile), "utf8"));
    await rm(place.runDir, { recursive: true, force: true });
  });
}

/** Instances with a marker of this boot and a router; those in `trusted` need no router. */
async function living(place: ForwardingPlace, boot: string, trusted: readonly string[]): Promise<string[]> {
  const routers = new Set([...(await place.routers()), ...trusted]);
  const names: string[] = await readdir(place.runDir).catch(() => []);
  const found: string[] = [];
  for (const name of names) {
    if (name === formerFile || name === ".lock" || !routers.has(name)) continue;
    if ((await readFile(join(place.runDir, name), "utf8")) === boot) found.push(name);
  }
  return found;
}
