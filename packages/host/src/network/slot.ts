/**
 * One slot: a network namespace with an `eth0`, its other end in the router.
 *
 * Called by network.ts. Everything survives a crash, by its name. Two files keep whether it was ever leased, and its policy.
 */
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile } from "@cloche/base";
import type { Native } from "../sys/native.ts";
import { linkPrefix, type LinkAddresses } from "./address.ts";
import type { EgressPolicy } from "./egress.ts";
import { netnsDir, networkNames, sandboxInterface, slotInterface, slotNamespace } from "./names.ts";
import { routerTable } from "./rules.ts";

/** Equal on every slot, each of which is its own link, so that a restored sandbox's neighbour table is right on any slot. */
const routerMac = "02:c1:0c:4e:00:01";
const sandboxMac = "02:c1:0c:4e:00:02";

export interface SlotPlace {
  readonly native: Native;
  readonly tag: string;
  /** Directory of the slots' files. */
  readonly stateDir: string;
}

export const slotNamespacePath = (tag: string, slot: number) => join(netnsDir, slotNamespace(tag, slot));

/** Makes namespace and link of a new slot. If it throws, call `deleteSlot` to remove the parts made. */
export async function makeSlot(place: SlotPlace, slot: number, addresses: LinkAddresses): Promise<void> {
  const { native, tag, stateDir } = place;
  const namespace = slotNamespacePath(tag, slot);
  await native.addNetns(namespace);
  await native.linkSlot(
    { ...routerEnd(tag, slot), mac: routerMac, address: `${addresses.gateway}/${linkPrefix}` },
    { namespace, interface: sandboxInterface, mac: sandboxMac },
  );
  await prepareSlot(place, slot, addresses);
  await mkdir(stateDir, { recursive: true, mode: 0o700 });
  await writeFile(slotFiles(stateDir, slot).fresh, "");
}

/** Sets address and routes of eth0 if they were removed. Repeatable. */
export async function prepareSlot(place: SlotPlace, slot: number, addresses: LinkAddresses): Promise<void> {
  const { gateway, address } = addresses;
  await place.native.prepareSlot({
    namespace: slotNamespacePath(place.tag, slot),
    interface: sandboxInterface,
    address: `${address}/${linkPrefix}`,
    gateway,
  });
}

/**
 * Removes link, namespace and files. Repeatable, also for a half-made slot; processes in it are cut off. Answers whether the slot
 * was ever denied anything: the router's sets then have more elements of it.
 */
export async function deleteSlot(place: SlotPlace, slot: number): Promise<{ denied: boolean }> {
  const { native, tag, stateDir } = place;
  const [, table = ""] = routerTable.split(" ");
  const { known: denied } = await native.unlinkSlot(routerEnd(tag, slot), { table, set: "denied" });
  await native.deleteNetns(slotNamespacePath(tag, slot));
  for (const file of Object.values(slotFiles(stateDir, slot))) await rm(file, { force: true });
  return { denied };
}

/** Notes on disk that the slot was leased, so that a later service does not lease it again. */
export async function markLeased(place: SlotPlace, slot: number): Promise<void> {
  await rm(slotFiles(place.stateDir, slot).fresh, { force: true });
}

/** Also true if the slot's files are missing. */
export async function wasLeased(place: SlotPlace, slot: number): Promise<boolean> {
  return !existsSync(slotFiles(place.stateDir, slot).fresh);
}

/** Saves the slot's policy for the next service: nft elements alone do not show which names are allowed. */
export async function saveEgress(place: SlotPlace, slot: number, policy: EgressPolicy): Promise<void> {
  const { egress } = slotFiles(place.stateDir, slot);
  await writeFile(`${egress}.new`, JSON.stringify(policy));
  await rename(`${egress}.new`, egress);
}

/** Undefined: the slot still has the policy of a new slot. */
export async function savedEgress(place: SlotPlace, slot: number): Promise<EgressPolicy | undefined> {
  return (await readJsonFile(slotFiles(place.stateDir, slot).egress)) as EgressPolicy | undefined;
}

const slotFiles = (stateDir: string, slot: number) => ({
  fresh: join(stateDir, `slot-${slot}.fresh`),
  egress: join(stateDir, `slot-${slot}.egress`),
});

const routerEnd = (tag: string, slot: number) => ({
  namespace: join(netnsDir, networkNames(tag).router),
  interface: slotInterface(slot),
});

/** Runs a program through cloche-sys. On failure its stderr (kept in a file) becomes the error's message. */
export async function execQuietly(
  native: Native,
  argv: readonly [string, ...string[]],
  options: { readonly netns?: string; readonly stderrFile: string },
): Promise<void> {
  const { exitCode } = await native.exec({ argv, ...options });
  const stderr = exitCode === 0 ? "" : await readFile(options.stderrFile, "utf8").catch(() => "");
  await rm(options.stderrFile, { force: true });
  if (exitCode !== 0) throw new Error(`${argv.join(" ")}: exit code ${exitCode}: ${stderr.trim()}`);
}
