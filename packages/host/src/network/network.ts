/**
 * The network of an instance: the router and a pool of slots made ahead, leased to machines one each.
 * Owns everything named after the instance's tag: namespaces, links, the nft tables, the DNS forwarder's sockets.
 *
 *   slot:  (none) ──make──▶ ready ──lease──▶ leased ──release──▶ (none)
 *          found at start: never leased ▶ ready; leased ──adopt──▶ leased, or ──reclaim──▶ (none)
 *
 * Called by machine drivers (lease, prepare, release, adopt) and the host service (egress, denials, open, close).
 * Everything except the DNS forwarder and the refilling of the pool survives a crash or stop; `openNetwork` finds it again.
 * A released slot is destroyed and never reused, and its number is used again as late as possible, so that no machine gets
 * packets meant for an earlier one.
 */
import { mkdir, readFile, rm } from "node:fs/promises";
import { randomInt } from "node:crypto";
import { dirname } from "node:path";
import { apart, inStep, type Progress, writeDurably } from "@cloche/base";
import { withFileLock } from "@cloche/base/file-lock";
import type { Egress } from "@cloche/protocol";
import type { Native } from "../sys/native.ts";
import {
  parseSubnet,
  slotsMax,
  type Subnet,
  slotAddresses,
  slotOfAddress,
  uplinkAddresses,
} from "./address.ts";
import { chooseSubnet } from "./choose-subnet.ts";
import { connectionTableSize } from "./connection-shares.ts";
import { DnsForwarder } from "./dns-forwarder.ts";
import { type EgressPolicy, policyOf } from "./egress.ts";
import { sandboxInterface, slotInterface } from "./names.ts";
import { hostResolvers } from "./resolvers.ts";
import {
  closeRouter,
  forwardingObstacle,
  loadRules,
  openRouter,
  rangesInUse,
  routerInterfaces,
  routerLinkStatistics,
  routerSubnet,
  slotsPresent,
} from "./router.ts";
import type { Denial } from "./nft-listing.ts";
import type { EgressReport } from "./egress-report.ts";
import { type LinkTraffic, trafficOfSlots } from "./traffic.ts";
import { SlotEgress } from "./slot-egress.ts";
import { SlotTeams } from "./slot-teams.ts";
import {
  deleteSlot,
  makeSlot,
  markLeased,
  prepareSlot,
  slotNamespacePath,
  type SlotPlace,
  wasLeased,
} from "./slot.ts";

export interface NetworkOptions {
  readonly tag: string;
  /** An IPv4 /16, for example "10.231.0.0/16"; refused if in use. "": a free one, kept for later starts. */
  readonly subnet: string;
  /** File that remembers the chosen subnet. Made with its folder. */
  readonly subnetFile: string;
  /** Directory for the slots' files; made when missing. */
  readonly stateDir: string;
  readonly native: Native;
  /** Slots kept ready, so that a lease takes no time. Default 8. */
  readonly slotsAhead?: number;
  /** Default: the servers of /etc/resolv.conf, read for each question. */
  readonly resolvers?: () => Promise<readonly string[]>;
  readonly upstreamDnsPort?: number;
  /** Entries of the host's table of connections, of which sandboxes get shares. Default: the kernel's. */
  readonly connectionTableSize?: number;
  readonly progress: Progress;
  /** Called with failures in the background: slots made ahead, answers of name servers. */
  readonly onError?: (error: unknown) => void;
}

export interface NetworkLease {
  readonly slot: number;
  /** Path of the namespace, for example /run/netns/cl-ab12cd-7. */
  readonly namespacePath: string;
  /** The interface in it: eth0. */
  readonly interfaceName: string;
  /** The sandbox's address, in a /30 with its gateway. */
  readonly address: string;
  readonly gateway: string;
  /** The address at which the host reaches the machine. */
  readonly agentHost: string;
  /** Sets address and routes of eth0 again: gVisor removes them when it starts or restores. A fresh lease has them. */
  prepare(): Promise<void>;
}

const slotsMadeAhead = 8;
const refillAfterMs = 500;
/** One for the whole computer. */
const choiceLock = "/run/cloche-subnet.lock";

/** Makes or finds the network. Repeatable after any crash. */
export function openNetwork(options: NetworkOptions): Promise<Network> {
  const repair =
    "see what the message says of CLOCHE_SUBNET, or of the missing kernel feature, and run the command again";
  return inStep(options.progress, "network", repair, async (detail) => {
    const subnet = await withFileLock(choiceLock, () => openInSubnet(options));
    const obstacle = await forwardingObstacle(options.tag);
    if (obstacle) detail(`WARNING: ${obstacle}`);
    const network = new Network(options, subnet);
    await network.start();
    return network;
  });
}

/** Call under choiceLock until the router's route exists, so that two instances never choose the same subnet. */
async function openInSubnet({ tag, subnet: asked, subnetFile }: NetworkOptions): Promise<Subnet> {
  if (asked !== "") parseSubnet(asked);
  const remembered = (await readFile(subnetFile, "utf8").catch(() => "")).trim();
  const subnet = parseSubnet(
    chooseSubnet({
      asked,
      present: await routerSubnet(tag),
      remembered: /^\d+\.\d+\.0\.0\/16$/.test(remembered) ? remembered : undefined,
      taken: await rangesInUse(tag),
    }),
  );
  await openRouter(tag, subnet);
  if (asked === "" && remembered !== subnet.cidr) {
    await mkdir(dirname(subnetFile), { recursive: true });
    await writeDurably(subnetFile, `${subnet.cidr}\n`, 0o644);
  }
  return subnet;
}

/** Removes the instance's whole network, in any state. No service may be using it. */
export async function destroyNetwork(
  options: Pick<NetworkOptions, "tag" | "stateDir" | "native">,
): Promise<void> {
  for (const slot of await slotsPresent(options.tag)) await deleteSlot(options, slot);
  await closeRouter(options.tag);
  await rm(options.stateDir, { recursive: true, force: true });
}

export class Network {
  readonly #options: NetworkOptions;
  readonly #place: SlotPlace;
  readonly #subnet: Subnet;
  readonly #dns: DnsForwarder;
  readonly #ready: number[] = [];
  readonly #leased = new Set<number>();
  /** Slots leased by an earlier service and not adopted yet. */
  readonly #found = new Set<number>();
  readonly #egress: SlotEgress;
  readonly #teams: SlotTeams;
  #cursor = randomInt(slotsMax);
  #refilling: Promise<void> | undefined;
  #refillTimer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: NetworkOptions, subnet: Subnet) {
    this.#options = options;
    this.#subnet = subnet;
    this.#place = { native: options.native, tag: options.tag, stateDir: options.stateDir };
    this.#egress = new SlotEgress(this.#place, subnet);
    this.#teams = new SlotTeams(this.#place);
    this.#dns = new DnsForwarder({
      address: uplinkAddresses(subnet).gateway,
      resolvers: options.resolvers ?? (() => hostResolvers()),
      slotOf: (address) => slotOfAddress(subnet, address),
      teamOf: (slot) => this.#teams.markOf(slot)?.toString(),
      policy: this.#egress,
      ...(options.onError && { onError: options.onError }),
      ...(options.upstreamDnsPort ? { upstreamPort: options.upstreamDnsPort } : {}),
    });
  }

  /** For openNetwork only. */
  async start(): Promise<void> {
    const dnsPort = await this.#dns.listen();
    const tableSize = this.#options.connectionTableSize ?? (await connectionTableSize());
    try {
      await loadRules(this.#options.tag, { subnet: this.#subnet, dnsPort, tableSize });
      await this.#findSlots();
    } catch (error) {
      await this.#dns.close();
      throw error;
    }
    this.#refill();
  }

  /** Leases a fresh slot, open to the public internet until `setEgress`. From the pool, or made now (~10 ms). */
  async lease(): Promise<NetworkLease> {
    const slot = this.#ready.shift() ?? (await this.#make());
    this.#leased.add(slot);
    await markLeased(this.#place, slot);
    this.#refillSoon();
    return this.#leaseOf(slot);
  }

  /** Adopts a slot that a machine of an earlier service still uses, with its egress; undefined if it is gone. */
  async adopt(slot: number): Promise<NetworkLease | undefined> {
    if (!this.#leased.has(slot) && !this.#found.delete(slot)) return undefined;
    this.#leased.add(slot);
    return this.#leaseOf(slot);
  }

  /** Destroys the slot and cuts off processes in it. Repeatable. */
  async release(slot: number): Promise<void> {
    this.#found.delete(slot);
    await this.#delete(slot);
    this.#leased.delete(slot);
  }

  /** Destroys slots of an earlier service that were not adopted, and answers them. Call it when adoption is over. */
  async reclaim(): Promise<number[]> {
    const slots = [...this.#found];
    for (const slot of slots) await this.release(slot);
    return slots;
  }

  /**
   * Sets what the sandbox may reach, in one transaction that also applies to open connections. Throws invalid_argument, which names
   * the wrong rule.
   */
  async setEgress(slot: number, policy: EgressPolicy): Promise<void> {
    if (!this.#leased.has(slot)) throw new Error(`slot ${slot} is not leased`);
    await this.#egress.set(slot, policy);
  }

  /** setEgress with a machine's address and the public form; undefined means open. */
  async setEgressOf(address: string, egress: Egress | undefined): Promise<void> {
    await this.setEgress(this.#slotOf(address), policyOf(egress));
  }

  /** Counts the connections and questions of the machine at this address to its team's. Repeatable. */
  async setTeamOf(address: string, teamId: string): Promise<void> {
    await this.#teams.set(this.#slotOf(address), teamId);
  }

  /** Denials of the machine at this address since it was made. */
  async reportOf(address: string): Promise<EgressReport> {
    return this.#egress.report(this.#slotOf(address));
  }

  /** Traffic over each machine's link, by its address. */
  async traffic(): Promise<ReadonlyMap<string, LinkTraffic>> {
    const slots = trafficOfSlots(await routerLinkStatistics(this.#options.tag));
    const leased = [...slots].filter(([slot]) => this.#leased.has(slot));
    return new Map(leased.map(([slot, link]) => [slotAddresses(this.#subnet, slot).address, link]));
  }

  /** Packets that the policy dropped, by slot, since each was made. */
  async denials(): Promise<ReadonlyMap<number, Denial>> {
    return this.#egress.denials();
  }

  /** The instance's /16. */
  get subnet(): string {
    return this.#subnet.cidr;
  }

  /** Ends name resolution and refilling. Everything else stays, for running sandboxes and the next start. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#refillTimer);
    await this.#refilling;
    await this.#dns.close();
  }

  /** Closes the network and removes everything from the computer. */
  async destroy(): Promise<void> {
    await this.close();
    await destroyNetwork(this.#options);
  }

  #slotOf(address: string): number {
    const slot = slotOfAddress(this.#subnet, address);
    if (slot === undefined || !this.#leased.has(slot)) throw new Error(`no machine has address ${address}`);
    return slot;
  }

  #leaseOf(slot: number): NetworkLease {
    const addresses = slotAddresses(this.#subnet, slot);
    const { gateway, address } = addresses;
    return {
      slot,
      namespacePath: slotNamespacePath(this.#options.tag, slot),
      interfaceName: sandboxInterface,
      address,
      gateway,
      agentHost: address,
      prepare: () => prepareSlot(this.#place, slot, addresses),
    };
  }

  /** Finds slots of an earlier service: leased slots wait for adoption, unused ones are ready, half-made ones are destroyed. */
  async #findSlots(): Promise<void> {
    const interfaces = await routerInterfaces(this.#options.tag);
    const withEgress = await this.#egress.find();
    const present = await slotsPresent(this.#options.tag);
    for (const slot of new Set([...present, ...withEgress.keys(), ...(await this.#teams.find())])) {
      const complete = withEgress.get(slot)?.complete && interfaces.has(slotInterface(slot));
      if (!complete || !present.includes(slot)) await this.#delete(slot);
      else if (await wasLeased(this.#place, slot)) this.#found.add(slot);
      else this.#ready.push(slot);
    }
  }

  async #make(): Promise<number> {
    const slot = this.#nextNumber();
    this.#leased.add(slot); // Reserves the number meanwhile.
    try {
      const addresses = slotAddresses(this.#subnet, slot);
      await makeSlot(this.#place, slot, addresses);
      await this.#egress.add(slot);
      return slot;
    } catch (error) {
      await this.#delete(slot).catch((undoError: unknown) => this.#options.onError?.(undoError));
      throw error;
    } finally {
      this.#leased.delete(slot);
    }
  }

  async #delete(slot: number): Promise<void> {
    const { denied } = await deleteSlot(this.#place, slot);
    await this.#egress.remove(slot, { denied });
    await this.#teams.remove(slot);
  }

  /** Uses a number again as late as possible. */
  #nextNumber(): number {
    for (let tried = 0; tried < slotsMax; tried++) {
      this.#cursor = (this.#cursor % slotsMax) + 1;
      const slot = this.#cursor;
      if (!this.#leased.has(slot) && !this.#found.has(slot) && !this.#ready.includes(slot)) return slot;
    }
    throw new Error(`all ${slotsMax} network slots are in use`);
  }

  /** The machine of a new lease still needs the CPUs: makes the next slot after a pause, or at once if none is left. */
  #refillSoon(): void {
    clearTimeout(this.#refillTimer);
    if (this.#ready.length === 0) return this.#refill();
    if (this.#closed) return;
    this.#refillTimer = apart(() => setTimeout(() => this.#refill(), refillAfterMs));
    this.#refillTimer.unref();
  }

  #refill(): void {
    const wanted = this.#options.slotsAhead ?? slotsMadeAhead;
    if (this.#refilling || this.#closed || this.#ready.length >= wanted) return;
    this.#refilling = (async () => {
      try {
        while (!this.#closed && this.#ready.length < wanted) this.#ready.push(await this.#make());
      } catch (error) {
        // The next lease makes its own slot and throws the failure.
        this.#options.onError?.(error);
      } finally {
        this.#refilling = undefined;
      }
    })();
  }
}
