// One slot: a network namespace with an `eth0`, its other end in the router. Made from two batch files that stay beside
// it, so that addresses can be put back at any time with one short-lived `ip` and nothing to compute.
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { readJsonFile } from "@cloche/base";
import type { Native } from "../sys/native.ts";
import { LINK_PREFIX, type LinkAddresses } from "./address.ts";
import type { EgressPolicy } from "./egress.ts";
import { NETNS_DIR, networkNames, SANDBOX_INTERFACE, slotInterface, slotNamespace } from "./names.ts";

/** The same on every slot (each is a link of its own): a restored sandbox's neighbour table stays true anywhere. */
const ROUTER_MAC = "02:c1:0c:4e:00:01";
const SANDBOX_MAC = "02:c1:0c:4e:00:02";

export interface SlotPlace {
  readonly native: Native;
  readonly tag: string;
  /** Where the batch files lie. */
  readonly stateDir: string;
}

export const slotNamespacePath = (tag: string, slot: number) => join(NETNS_DIR, slotNamespace(tag, slot));

/** Makes namespace and link of a slot that does not exist. When it throws, `deleteSlot` removes what there is. */
export async function makeSlot(place: SlotPlace, slot: number, addresses: LinkAddresses): Promise<void> {
  const { native, tag, stateDir } = place;
  const files = batchFiles(stateDir, slot);
  const end = slotInterface(slot);
  const namespace = slotNamespace(tag, slot);
  await mkdir(stateDir, { recursive: true, mode: 0o700 });
  await writeFile(
    files.router,
    [
      `link add ${end} address ${ROUTER_MAC} type veth peer name ${SANDBOX_INTERFACE} address ${SANDBOX_MAC} netns ${namespace}`,
      `addr add ${addresses.gateway}/${LINK_PREFIX} dev ${end}`,
      `link set ${end} up`,
      "",
    ].join("\n"),
  );
  await writeFile(
    files.sandbox,
    [
      "link set lo up",
      `link set ${SANDBOX_INTERFACE} up`,
      `addr replace ${addresses.address}/${LINK_PREFIX} dev ${SANDBOX_INTERFACE}`,
      `route replace default via ${addresses.gateway} dev ${SANDBOX_INTERFACE}`,
      "",
    ].join("\n"),
  );
  await native.addNetns(slotNamespacePath(tag, slot));
  await ip(place, ["-n", networkNames(tag).router, "-batch", files.router]);
  await prepareSlot(place, slot);
}

/** Addresses and routes of eth0, wherever they were taken out. Repeatable. */
export async function prepareSlot(place: SlotPlace, slot: number): Promise<void> {
  const files = batchFiles(place.stateDir, slot);
  await ip(place, ["-n", slotNamespace(place.tag, slot), "-batch", files.sandbox]);
}

/** Removes link, namespace and files. Repeatable, also for a half-made slot; a process still in it is cut off. */
export async function deleteSlot(place: SlotPlace, slot: number): Promise<void> {
  const { native, tag, stateDir } = place;
  const deleted = await native.exec({
    argv: ["ip", "-n", networkNames(tag).router, "link", "del", slotInterface(slot)],
  });
  // 1: no such interface (any more). 255: no router namespace.
  if (![0, 1, 255].includes(deleted.exitCode))
    throw new Error(`deleting the link of slot ${slot}: ${deleted.exitCode}`);
  await native.deleteNetns(slotNamespacePath(tag, slot));
  for (const file of Object.values(batchFiles(stateDir, slot))) await rm(file, { force: true });
}

/** Kept on disk, so that a later service knows which slots were never given to anybody. */
export async function markLeased(place: SlotPlace, slot: number): Promise<void> {
  await writeFile(batchFiles(place.stateDir, slot).leased, "");
}

/** True too when the slot's files are gone: nothing is known of it then. */
export async function wasLeased(place: SlotPlace, slot: number): Promise<boolean> {
  const { leased, sandbox } = batchFiles(place.stateDir, slot);
  const names: string[] = await readdir(place.stateDir).catch(() => []);
  return names.includes(basename(leased)) || !names.includes(basename(sandbox));
}

/** The policy that the slot is under, for the next service: rules alone do not say which names are allowed. */
export async function saveEgress(place: SlotPlace, slot: number, policy: EgressPolicy): Promise<void> {
  const { egress } = batchFiles(place.stateDir, slot);
  await writeFile(`${egress}.new`, JSON.stringify(policy));
  await rename(`${egress}.new`, egress);
}

/** Undefined: it was never changed from what a new slot has. */
export async function savedEgress(place: SlotPlace, slot: number): Promise<EgressPolicy | undefined> {
  return (await readJsonFile(batchFiles(place.stateDir, slot).egress)) as EgressPolicy | undefined;
}

const batchFiles = (stateDir: string, slot: number) => ({
  router: join(stateDir, `slot-${slot}.router`),
  sandbox: join(stateDir, `slot-${slot}.sandbox`),
  leased: join(stateDir, `slot-${slot}.leased`),
  egress: join(stateDir, `slot-${slot}.egress`),
});

const ip = (place: SlotPlace, args: readonly string[]) =>
  execQuietly(place.native, ["ip", ...args], { stderrFile: `${args.at(-1)}.errors` });

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
