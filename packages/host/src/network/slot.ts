// One slot: a network namespace with an `eth0`, its other end in the router.
//
// Called by network.ts. What survives a crash: all of it, by name; two files tell whether it was ever leased, and its policy.
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { readJsonFile } from "@cloche/base";
import type { Native } from "../sys/native.ts";
import { LINK_PREFIX, type LinkAddresses } from "./address.ts";
import type { EgressPolicy } from "./egress.ts";
import { NETNS_DIR, networkNames, SANDBOX_INTERFACE, slotInterface, slotNamespace } from "./names.ts";
import { ROUTER_TABLE } from "./rules.ts";

/** The same on every slot (each is a link of its own): a restored sandbox's neighbour table stays true anywhere. */
const ROUTER_MAC = "02:c1:0c:4e:00:01";
const SANDBOX_MAC = "02:c1:0c:4e:00:02";

export interface SlotPlace {
  readonly native: Native;
  readonly tag: string;
  /** Where the slots' files lie. */
  readonly stateDir: string;
}

export const slotNamespacePath = (tag: string, slot: number) => join(NETNS_DIR, slotNamespace(tag, slot));

/** Makes namespace and link of a slot that does not exist. When it throws, `deleteSlot` removes what there is. */
export async function makeSlot(place: SlotPlace, slot: number, addresses: LinkAddresses): Promise<void> {
  const { native, tag, stateDir } = place;
  const namespace = slotNamespacePath(tag, slot);
  await native.addNetns(namespace);
  await native.linkSlot(
    { ...routerEnd(tag, slot), mac: ROUTER_MAC, address: `${addresses.gateway}/${LINK_PREFIX}` },
    { namespace, interface: SANDBOX_INTERFACE, mac: SANDBOX_MAC },
  );
  await prepareSlot(place, slot, addresses);
  await mkdir(stateDir, { recursive: true, mode: 0o700 });
  await writeFile(slotFiles(stateDir, slot).fresh, "");
}

/** Addresses and routes of eth0, wherever they were taken out. Repeatable. */
export async function prepareSlot(place: SlotPlace, slot: number, addresses: LinkAddresses): Promise<void> {
  const { gateway, address } = addresses;
  await place.native.prepareSlot({
    namespace: slotNamespacePath(place.tag, slot),
    interface: SANDBOX_INTERFACE,
    address: `${address}/${LINK_PREFIX}`,
    gateway,
  });
}

/**
 * Removes link, namespace and files. Repeatable, also for a half-made slot; a process still in it is cut off. Answers whether it
 * was ever denied anything: the router's sets then hold more of it.
 */
export async function deleteSlot(place: SlotPlace, slot: number): Promise<{ denied: boolean }> {
  const { native, tag, stateDir } = place;
  const [, table = ""] = ROUTER_TABLE.split(" ");
  const { known: denied } = await native.unlinkSlot(routerEnd(tag, slot), { table, set: "denied" });
  await native.deleteNetns(slotNamespacePath(tag, slot));
  for (const file of Object.values(slotFiles(stateDir, slot))) await rm(file, { force: true });
  return { denied };
}

/** Kept on disk, so that a later service knows which slots were never given to anybody. */
export async function markLeased(place: SlotPlace, slot: number): Promise<void> {
  await rm(slotFiles(place.stateDir, slot).fresh, { force: true });
}

/** True too when the slot's files are gone: nothing is known of it then. */
export async function wasLeased(place: SlotPlace, slot: number): Promise<boolean> {
  return !existsSync(slotFiles(place.stateDir, slot).fresh);
}

/** The policy that the slot is under, for the next service: rules alone do not say which names are allowed. */
export async function saveEgress(place: SlotPlace, slot: number, policy: EgressPolicy): Promise<void> {
  const { egress } = slotFiles(place.stateDir, slot);
  await writeFile(`${egress}.new`, JSON.stringify(policy));
  await rename(`${egress}.new`, egress);
}

/** Undefined: it was never changed from what a new slot has. */
export async function savedEgress(place: SlotPlace, slot: number): Promise<EgressPolicy | undefined> {
  return (await readJsonFile(slotFiles(place.stateDir, slot).egress)) as EgressPolicy | undefined;
}

const slotFiles = (stateDir: string, slot: number) => ({
  fresh: join(stateDir, `slot-${slot}.fresh`),
  egress: join(stateDir, `slot-${slot}.egress`),
});

const routerEnd = (tag: string, slot: number) => ({
  namespace: join(NETNS_DIR, networkNames(tag).router),
  interface: slotInterface(slot),
});

/** Runs a program by cloche-sys; what it says on stderr (kept in a file meanwhile) becomes the message of the error. */
export async function execQuietly(
  native: Native,
  argv: readonly [string, ...string[]],
  options: { readonly netns?: string; readonly stderrFile: string },
): Promise<void> {
  const { exitCode } = await native.exec({ argv, ...options });
  const said = exitCode === 0 ? "" : await readFile(options.stderrFile, "utf8").catch(() => "");
  await rm(options.stderrFile, { force: true });
  if (exitCode !== 0) throw new Error(`${argv.join(" ")}: exit code ${exitCode}: ${said.trim()}`);
}
