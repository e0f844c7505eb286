// The network of an instance: the router and a pool of slots made ahead, leased to machines one each.
// Owns everything named after the instance's tag: namespaces, links, the nft tables, the DNS forwarder's sockets.
//
//   slot:  (none) ──make──▶ ready ──lease──▶ leased ──release──▶ (none)
//          found at start: never leased ▶ ready; leased ──adopt──▶ leased, or ──reclaim──▶ (none)
//
// Called by machine drivers (lease, prepare, release, adopt) and the host service (egress, denials, open, close).
// What survives a crash or a stop: all but the DNS forwarder and the refilling of the pool; `openNetwork` finds it again.
// A released slot is destroyed, never handed on, and its number comes round last, so that nobody gets packets meant for
// the one before.
import { mkdir, readFile, rm } from "node:fs/promises";
import { randomInt } from "node:crypto";
import { dirname } from "node:path";
import { apart, writeDurably } from "@cloche/base";
import type { Egress } from "@cloche/protocol";
import { withFileLock } from "../artifacts/file-lock.ts";
import { inStep, type Progress } from "../artifacts/step.ts";
import type { Native } from "../sys/native.ts";
import {
  parseSubnet,
  SLOTS_MAX,
  type Subnet,
  slotAddresses,
  slotOfAddress,
  uplinkAddresses,
} from "./address.ts";
import { chooseSubnet } from "./choose-subnet.ts";
import { DnsForwarder } from "./dns-forwarder.ts";
import { type EgressPolicy, policyOf } from "./egress.ts";
import { SANDBOX_INTERFACE, slotInterface } from "./names.ts";
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
import type { Denial } from "./sets.ts";
import type { EgressReport } from "./egress-report.ts";
import { type LinkTraffic, trafficOfSlots } from "./traffic.ts";
import { SlotEgress } from "./slot-egress.ts";
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
  /** An IPv4 /16, for example "10.231.0.0/16"; refused where somebody else uses it. "": one that is free, the same at the next start. */
  readonly subnet: string;
  /** Remembers a subnet that was chosen. Made with its folder. */
  readonly subnetFile: string;
  /** Directory for the slots' files; made when missing. */
  readonly stateDir: string;
  readonly native: Native;
  /** Slots kept ready, so that a lease costs nothing. Default 8. */
  readonly slotsAhead?: number;
  /** Default: those of /etc/resolv.conf, read again when asked. */
  readonly resolvers?: () => Promise<readonly string[]>;
  readonly upstreamDnsPort?: number;
  readonly progress: Progress;
  /** Told of failures in the background (making slots ahead). */
  readonly onError?: (error: unknown) => void;
}

export interface NetworkLease {
  readonly slot: number;
  /** Path of the namespace, for example /run/netns/cl-ab12cd-7. */
  readonly namespacePath: string;
  /** The interface in it: eth0. */
  readonly interfaceName: string;
  /** The sandbox's address; a /30 with its gateway. */
  readonly address: string;
  readonly gateway: string;
  /** Where the host reaches the machine: its address. */
  readonly agentHost: string;
  /** Addresses and routes of eth0 into the namespace again: gVisor takes them out when it starts or restores, a fresh lease has them. */
  prepare(): Promise<void>;
}

const SLOTS_AHEAD = 8;
const REFILL_AFTER_MS = 500;
/** Of this machine. */
const CHOICE_LOCK = "/run/cloche-subnet.lock";

/** Makes or finds the network. Repeatable after any crash. */
export function openNetwork(options: NetworkOptions): Promise<Network> {
  const repair =
    "see what the message says of CLOCHE_SUBNET, or of the missing kernel feature, and run the command again";
  return inStep(options.progress, "network", repair, async (detail) => {
    const subnet = await withFileLock(CHOICE_LOCK, () => openInSubnet(options));
    const obstacle = await forwardingObstacle(options.tag);
    if (obstacle) detail(`WARNING: ${obstacle}`);
    const network = new Network(options, subnet);
    await network.start();
    return network;
  });
}

/** Two instances that start at once must not choose the same: until the router's route is there, nobody else may look. */
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

/** Everything of the instance's network off the machine, whatever state it is in; no service may be using it. */
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
  /** Leased under an earlier service, not adopted yet. */
  readonly #found = new Set<number>();
  readonly #egress: SlotEgress;
  #cursor = randomInt(SLOTS_MAX);
  #refilling: Promise<void> | undefined;
  #refillTimer: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(options: NetworkOptions, subnet: Subnet) {
    this.#options = options;
    this.#subnet = subnet;
    this.#place = { native: options.native, tag: options.tag, stateDir: options.stateDir };
    this.#egress = new SlotEgress(this.#place, subnet);
    this.#dns = new DnsForwarder({
      address: uplinkAddresses(subnet).gateway,
      resolvers: options.resolvers ?? (() => hostResolvers()),
      slotOf: (address) => slotOfAddress(subnet, address),
      policy: this.#egress,
      ...(options.upstreamDnsPort ? { upstreamPort: options.upstreamDnsPort } : {}),
    });
  }

  /** For openNetwork only. */
  async start(): Promise<void> {
    const dnsPort = await this.#dns.listen();
    try {
      await loadRules(this.#options.tag, this.#subnet, dnsPort);
      await this.#findSlots();
    } catch (error) {
      await this.#dns.close();
      throw error;
    }
    this.#refill();
  }

  /** A fresh slot, open to the public internet unless `setEgress` says otherwise. From the pool, else made now (~10 ms). */
  async lease(): Promise<NetworkLease> {
    const slot = this.#ready.shift() ?? (await this.#make());
    this.#leased.add(slot);
    await markLeased(this.#place, slot);
    this.#refillSoon();
    return this.#leaseOf(slot);
  }

  /** The lease of a slot that a machine of an earlier service still uses; undefined when it is gone. Its egress is kept. */
  async adopt(slot: number): Promise<NetworkLease | undefined> {
    if (!this.#leased.has(slot) && !this.#found.delete(slot)) return undefined;
    this.#leased.add(slot);
    return this.#leaseOf(slot);
  }

  /** Destroys the slot, cutting off what still runs in it. Repeatable. */
  async release(slot: number): Promise<void> {
    this.#found.delete(slot);
    await this.#delete(slot);
    this.#leased.delete(slot);
  }

  /** Destroys the slots leased under an earlier service that nobody adopted; answers them. To be called when adoption is over. */
  async reclaim(): Promise<number[]> {
    const slots = [...this.#found];
    for (const slot of slots) await this.release(slot);
    return slots;
  }

  /**
   * What the sandbox may reach from now on; one transaction, which open connections feel too. invalid_argument names a
   * wrong rule.
   */
  async setEgress(slot: number, policy: EgressPolicy): Promise<void> {
    if (!this.#leased.has(slot)) throw new Error(`slot ${slot} is not leased`);
    await this.#egress.set(slot, policy);
  }

  /** setEgress by the address of a machine, in the public form; undefined is open. */
  async setEgressOf(address: string, egress: Egress | undefined): Promise<void> {
    await this.setEgress(this.#slotOf(address), policyOf(egress));
  }

  /** What the machine of this address was denied since it was made. */
  async reportOf(address: string): Promise<EgressReport> {
    return this.#egress.report(this.#slotOf(address));
  }

  /** What went over the link of each machine, by its address. */
  async traffic(): Promise<ReadonlyMap<string, LinkTraffic>> {
    const slots = trafficOfSlots(await routerLinkStatistics(this.#options.tag));
    const leased = [...slots].filter(([slot]) => this.#leased.has(slot));
    return new Map(leased.map(([slot, link]) => [slotAddresses(this.#subnet, slot).address, link]));
  }

  /** Packets that the policy dropped, by slot, since each was made. */
  async denials(): Promise<ReadonlyMap<number, Denial>> {
    return this.#egress.denials();
  }

  /** The /16 that it has. */
  get subnet(): string {
    return this.#subnet.cidr;
  }

  /** Slots in use: for counting leaks. */
  get leasedSlots(): readonly number[] {
    return [...this.#leased];
  }

  /** Ends name resolution and refilling. Everything else stays for the sandboxes that live on and the next start. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#refillTimer);
    await this.#refilling;
    await this.#dns.close();
  }

  /** Closes and takes everything off the machine. */
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
      interfaceName: SANDBOX_INTERFACE,
      address,
      gateway,
      agentHost: address,
      prepare: () => prepareSlot(this.#place, slot, addresses),
    };
  }

  /** Slots of an earlier service: leased ones wait for adoption, unused ones are ready, half-made ones go. */
  async #findSlots(): Promise<void> {
    const interfaces = await routerInterfaces(this.#options.tag);
    const withEgress = await this.#egress.find();
    const present = await slotsPresent(this.#options.tag);
    for (const slot of new Set([...present, ...withEgress.keys()])) {
      const complete = withEgress.get(slot)?.complete && interfaces.has(slotInterface(slot));
      if (!complete || !present.includes(slot)) await this.#delete(slot);
      else if (await wasLeased(this.#place, slot)) this.#found.add(slot);
      else this.#ready.push(slot);
    }
  }

  async #make(): Promise<number> {
    const slot = this.#nextNumber();
    this.#leased.add(slot); // Nobody else takes the number meanwhile.
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
    this.#dns.forget(slot);
  }

  /** Numbers come round as late as possible. */
  #nextNumber(): number {
    for (let tried = 0; tried < SLOTS_MAX; tried++) {
      this.#cursor = (this.#cursor % SLOTS_MAX) + 1;
      const slot = this.#cursor;
      if (!this.#leased.has(slot) && !this.#found.has(slot) && !this.#ready.includes(slot)) return slot;
    }
    throw new Error(`all ${SLOTS_MAX} network slots are in use`);
  }

  /** Whoever leased one is still busy with its machine, on the same CPUs: the next is made when that is over, or when none is left. */
  #refillSoon(): void {
    clearTimeout(this.#refillTimer);
    if (this.#ready.length === 0) return this.#refill();
    if (this.#closed) return;
    this.#refillTimer = apart(() => setTimeout(() => this.#refill(), REFILL_AFTER_MS));
    this.#refillTimer.unref();
  }

  #refill(): void {
    const wanted = this.#options.slotsAhead ?? SLOTS_AHEAD;
    if (this.#refilling || this.#closed || this.#ready.length >= wanted) return;
    this.#refilling = (async () => {
      try {
        while (!this.#closed && this.#ready.length < wanted) this.#ready.push(await this.#make());
      } catch (error) {
        // The next lease makes its own and says what is wrong.
        this.#options.onError?.(error);
      } finally {
        this.#refilling = undefined;
      }
    })();
  }
}
