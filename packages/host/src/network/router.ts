/**
 * Makes, finds again and removes the router namespace of an instance and its link to the host.
 *
 *   host ──cl-<tag>── /30 ──uplink── router namespace ──s1…sN── slots
 *
 * Everything survives a crash, by its name. `openRouter` adds missing parts and leaves the others.
 */
import { statSync } from "node:fs";
import { mkdir, readdir, rm, writeFile } from "node:fs/promises";
import { randomUUID } from "node:crypto";
import { isIPv4 } from "node:net";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import { CommandError, run } from "@cloche/base/run";
import { type ElementChange, elementsMax } from "../sys/native.ts";
import { linkPrefix, type Subnet, uplinkAddresses } from "./address.ts";
import type { TakenRange } from "./choose-subnet.ts";
import { disableForwarding, enableForwarding, type ForwardingPlace } from "./ip-forward.ts";
import { netnsDir, networkNames, slotOfNamespace } from "./names.ts";
import { hostResolvers } from "./resolvers.ts";
import { hostRules, routerTable, type RouterRules, routerRules } from "./rules.ts";
import { execQuietly, type SlotPlace } from "./slot.ts";

/** ip_forward belongs to the network namespace that we run in, which is not always the computer's first. */
const forwarding = (): ForwardingPlace => ({
  runDir: `/run/cloche-ip-forward-${statSync("/proc/self/ns/net").ino}`,
  routers: async () => (await namespaces()).filter((name) => name.startsWith("cloche-")),
});

/** The subnet of this instance's router; undefined if there is no router or it has none. */
export async function routerSubnet(tag: string): Promise<string | undefined> {
  const names = networkNames(tag);
  if (!(await namespaces()).includes(names.router)) return undefined;
  const [address] = await addressesOf(names.router, names.routerUplink);
  return address?.replace(/^(\d+\.\d+)\..*$/, "$1.0.0/16");
}

/** IPv4 ranges in use on this computer, except our own: routes, addresses and name servers. */
export async function rangesInUse(tag: string): Promise<TakenRange[]> {
  const { uplink } = networkNames(tag);
  const { stdout } = await run(["ip", "-j", "-4", "route"]);
  const routes = (JSON.parse(stdout) as { dst: string; dev?: string }[])
    .filter(({ dst, dev }) => dst !== "default" && dev !== uplink)
    .map(({ dst, dev }) => ({ range: dst, where: `on ${dev ?? "no interface"}` }));
  const addresses = Object.entries(networkInterfaces())
    .filter(([name]) => name !== uplink)
    .flatMap(([name, list]) => (list ?? []).map((one) => ({ ...one, where: `on ${name}` })))
    .filter(({ family }) => family === "IPv4")
    .map(({ address, where }) => ({ range: address, where }));
  const resolvers = (await hostResolvers())
    .filter((address) => isIPv4(address))
    .map((range) => ({ range, where: "in /etc/resolv.conf" }));
  return [...routes, ...addresses, ...resolvers];
}

/** Makes everything except the rules. Repeatable. */
export async function openRouter(tag: string, subnet: Subnet): Promise<void> {
  const names = networkNames(tag);
  const { gateway, address } = uplinkAddresses(subnet);
  const present = (await namespaces()).includes(names.router);
  if (present && !(await addressesOf(names.router, names.routerUplink)).includes(address)) {
    // Half-made, or made for another subnet: no sandbox can be using it.
    await closeRouter(tag);
    return openRouter(tag, subnet);
  }
  if (!present) {
    await run(["ip", "netns", "add", names.router]);
    await deleteLink(names.uplink);
    const [near, far] = [names.uplink, names.routerUplink];
    await ipBatch(undefined, [`link add ${near} type veth peer name ${far} netns ${names.router}`]);
  }
  await ipBatch(names.router, [
    "link set lo up",
    `link set ${names.routerUplink} up`,
    `addr replace ${address}/${linkPrefix} dev ${names.routerUplink}`,
  ]);
  await ipBatch(undefined, [
    `link set ${names.uplink} up`,
    `addr replace ${gateway}/${linkPrefix} dev ${names.uplink}`,
    `route replace ${subnet.cidr} via ${address} dev ${names.uplink}`,
  ]);
  await ipBatch(names.router, [`route replace default via ${gateway} dev ${names.routerUplink}`]);
  await inRouter(names.router, [
    "echo 1 > /proc/sys/net/ipv4/ip_forward",
    "echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects",
    "echo 0 > /proc/sys/net/ipv4/conf/default/send_redirects",
    "echo 0 > /proc/sys/net/ipv4/conf/all/accept_redirects",
    // Also of ARP: no neighbour entry for a source that a sandbox made up. The whole computer has 1,024 places for entries.
    "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter",
    // Missing if the kernel has no IPv6.
    "[ ! -d /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6",
    "[ ! -d /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6",
  ]);
  await enableForwarding(forwarding(), names.router);
}

/** Loads the rules on both sides. Keeps the elements of the router's sets. */
export async function loadRules(tag: string, rules: RouterRules): Promise<void> {
  // The host's rules first: the router must never forward to a host that does not filter.
  await run(["nft", "-f", "-"], { input: hostRules(tag, rules) });
  await run(["ip", "netns", "exec", networkNames(tag).router, "nft", "-f", "-"], {
    input: routerRules(rules),
  });
}

/** Runs nft commands in the router as one transaction, through cloche-sys, because slots change often. */
export async function routerNft(place: SlotPlace, commands: readonly string[]): Promise<void> {
  const file = join(place.stateDir, `transaction-${randomUUID()}.nft`);
  await mkdir(place.stateDir, { recursive: true, mode: 0o700 });
  await writeFile(file, `${commands.join("\n")}\n`);
  try {
    await execQuietly(place.native, ["nft", "-f", file], {
      netns: join(netnsDir, networkNames(place.tag).router),
      stderrFile: `${file}.errors`,
    });
  } finally {
    await rm(file, { force: true });
  }
}

/**
 * The same for elements: cloche-sys changes them without starting nft, which reads a whole set to take one element out of it. Beyond
 * `elementsMax` changes in more than one transaction.
 */
export async function changeElements(place: SlotPlace, changes: readonly ElementChange[]): Promise<void> {
  const [, table = ""] = routerTable.split(" ");
  const router = join(netnsDir, networkNames(place.tag).router);
  for (let at = 0; at < changes.length; at += elementsMax)
    await place.native.changeElements(router, table, changes.slice(at, at + elementsMax));
}

export async function routerNftJson(tag: string, ...args: readonly string[]): Promise<unknown> {
  const argv = ["ip", "netns", "exec", networkNames(tag).router, "nft", "-j", ...args] as const;
  return JSON.parse((await run([...argv])).stdout);
}

/** Names of the interfaces in the router. */
export async function routerInterfaces(tag: string): Promise<Set<string>> {
  const { stdout } = await run(["ip", "-j", "-n", networkNames(tag).router, "link"]);
  return new Set((JSON.parse(stdout) as { ifname: string }[]).map(({ ifname }) => ifname));
}

/** JSON of iproute2. */
export async function routerLinkStatistics(tag: string): Promise<string> {
  return (await run(["ip", "-s", "-j", "-n", networkNames(tag).router, "link"])).stdout;
}

/** Slots that have a namespace on this computer, complete or not, with or without a router. */
export async function slotsPresent(tag: string): Promise<number[]> {
  const slots = (await namespaces()).map((name) => slotOfNamespace(tag, name));
  return slots.filter((slot) => slot !== undefined).sort((a, b) => a - b);
}

/** Removes the router, its link and rules, and forwarding if no other instance needs it. Repeatable. Remove the slots first. */
export async function closeRouter(tag: string): Promise<void> {
  const names = networkNames(tag);
  await deleteLink(names.uplink);
  if ((await namespaces()).includes(names.router)) await run(["ip", "netns", "del", names.router]);
  await run(["nft", "-f", "-"], {
    input: `add table inet ${names.hostTable}\ndelete table inet ${names.hostTable}\n`,
  });
  await disableForwarding(forwarding(), names.router);
}

/**
 * Looks for another firewall on the computer (Docker's, ufw) that drops forwarded packets by default, which no rule of ours can
 * override. Answers what to do about it; undefined if there is none.
 */
export async function forwardingObstacle(tag: string): Promise<string | undefined> {
  const { stdout } = await run(["nft", "-j", "list", "chains"]);
  const { uplink } = networkNames(tag);
  const chain = droppingChain(JSON.parse(stdout));
  if (!chain) return undefined;
  return [
    `the machine's firewall drops forwarded packets (nft chain ${chain}), so sandboxes reach nothing outside; to allow them:`,
    `iptables -I FORWARD -i ${uplink} -j ACCEPT && iptables -I FORWARD -o ${uplink} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
  ].join(" ");
}

/** From `nft -j list chains`: the first chain that hooks forward with policy drop. */
export function droppingChain(json: unknown): string | undefined {
  interface Chain {
    readonly family: string;
    readonly table: string;
    readonly name: string;
    readonly hook?: string;
    readonly policy?: string;
  }
  const chains = (json as { nftables: { chain?: Chain }[] }).nftables.flatMap(({ chain }) => chain ?? []);
  const found = chains.find(
    ({ hook, policy, family }) => hook === "forward" && policy === "drop" && family !== "ip6",
  );
  return found && `${found.family} ${found.table} ${found.name}`;
}

async function addressesOf(namespace: string, device: string): Promise<string[]> {
  try {
    const { stdout } = await run(["ip", "-j", "-4", "-n", namespace, "addr", "show", "dev", device]);
    const [link] = JSON.parse(stdout) as { addr_info?: { local: string }[] }[];
    return link?.addr_info?.map(({ local }) => local) ?? [];
  } catch (error) {
    if (error instanceof CommandError) return [];
    throw error;
  }
}

async function deleteLink(name: string): Promise<void> {
  const { stdout } = await run(["ip", "-j", "link"]);
  const present = (JSON.parse(stdout) as { ifname: string }[]).some(({ ifname }) => ifname === name);
  if (present) await run(["ip", "link", "del", name]);
}

async function namespaces(): Promise<string[]> {
  return readdir(netnsDir).catch(() => []);
}

async function ipBatch(namespace: string | undefined, lines: readonly string[]): Promise<void> {
  const where = namespace === undefined ? [] : ["-n", namespace];
  await run(["ip", ...where, "-batch", "-"], { input: `${lines.join("\n")}\n` });
}

async function inRouter(router: string, lines: readonly string[]): Promise<void> {
  await run(["ip", "netns", "exec", router, "sh", "-ec", lines.join("\n")]);
}
