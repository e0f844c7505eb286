/**
 * Which host a new machine goes to. Decided over what this gateway last read, which may be 2 s old; the reservation in the
 * transaction that writes the record decides whether there is room (database/host-reservations.ts), and who is refused tries
 * another host, three in all.
 *
 *   spread   of two hosts at random, the one that has less reserved
 *   packed   of eight at random among the first hosts that together are enough for everything, the fullest that stays below 85 %:
 *            the hosts behind them empty, and an autoscaler can take them away
 */
import type { RandomBytes } from "@cloche/protocol";
import { NoRoom } from "../database/host-reservations.ts";
import type { HostRecord } from "../database/hosts.ts";
import type { Fleet } from "./fleet.ts";
import { isOpen } from "./fleet.ts";
import { gatewayLimits } from "../limits.ts";

export type PlacementStrategy = "packed" | "spread";

/** What a machine needs of its host. */
export interface Need {
  memoryMb: number;
  /** Empty: the host's default. */
  runtime: string;
  template?: string;
  /** Of the CPU that its memory was saved on; default: any. */
  cpuClass?: string;
  /** Hosts that would have it sooner than others. */
  prefers?: (hostId: string) => boolean;
}

/** Chooses a host that was not tried before. Throws `unavailable` when there is none. */
export type Choose = (need: Need) => string;

export interface PlacementDependencies {
  fleet: Pick<Fleet, "isCluster" | "ids" | "rows" | "templatesOf">;
  strategy: PlacementStrategy;
  randomBytes: RandomBytes;
  /** Hears of each machine that no host had room for. */
  onRefused: () => void;
}

export class Placement {
  readonly #needs: PlacementDependencies;

  constructor(needs: PlacementDependencies) {
    this.#needs = needs;
  }

  /**
   * Does `body`, which writes a record with a host that it chose, again with other hosts while it throws NoRoom. Throws
   * `unavailable` after three, or when none is left.
   */
  async place<T>(body: (choose: Choose) => Promise<T>): Promise<T> {
    const tried = new Set<string>();
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await body((need) => this.choose(need, tried));
      } catch (error) {
        if (!(error instanceof NoRoom)) throw error;
        tried.add(error.hostId);
        if (error.hostId === "" || attempt === gatewayLimits.placementTries) throw this.refused(error);
      }
    }
  }

  /** Counts it, for an autoscaler. */
  refused(error: NoRoom): NoRoom {
    this.#needs.onRefused();
    return error;
  }

  /** Throws NoRoom when no host but those of `except` fits. In one process: its host. */
  choose(need: Need, except: ReadonlySet<string> = new Set()): string {
    const { fleet, strategy } = this.#needs;
    if (!fleet.isCluster) return fleet.ids()[0] ?? "";
    const hosts = [...fleet.rows()].filter(
      (host) => isOpen(host) && !except.has(host.id) && serves(host, need),
    );
    const chosen = strategy === "packed" ? this.#packed(hosts, need) : this.#spread(hosts, need);
    if (chosen === undefined) throw new NoRoom("");
    // Until the row is read again: what this gateway places meanwhile counts.
    chosen.reservedMemoryMb += need.memoryMb;
    return chosen.id;
  }

  #spread(hosts: readonly HostRecord[], need: Need): HostRecord | undefined {
    const fitting = this.#preferred(hosts.filter(hasRoom(need, 1)), need);
    const two = this.#some(fitting, gatewayLimits.placementSpreadOf);
    return two.toSorted((a, b) => shareOf(a) - shareOf(b))[0];
  }

  #packed(hosts: readonly HostRecord[], need: Need): HostRecord | undefined {
    const below = hosts.filter(hasRoom(need, gatewayLimits.placementPackedShare));
    const first = packedPrefix(hosts, need.memoryMb);
    const inPrefix = below.filter(({ id }) => first.has(id));
    for (const group of [inPrefix, below, hosts.filter(hasRoom(need, 1))]) {
      if (group.length === 0) continue;
      const eight = this.#some(this.#preferred(group, need), gatewayLimits.placementPackedOf);
      return eight.toSorted((a, b) => shareOf(b) - shareOf(a))[0];
    }
    return undefined;
  }

  /** Those that would have it sooner, where there are any. */
  #preferred(hosts: HostRecord[], { prefers, template }: Need): HostRecord[] {
    const { fleet } = this.#needs;
    const ready = prefers ? hosts.filter(({ id }) => prefers(id)) : [];
    if (ready.length > 0) return ready;
    const having = template ? hosts.filter(({ id }) => fleet.templatesOf(id).has(template)) : [];
    return having.length > 0 ? having : hosts;
  }

  /** So many of them at random. */
  #some(hosts: HostRecord[], count: number): HostRecord[] {
    for (let index = 0; index < Math.min(count, hosts.length); index += 1) {
      const random = Buffer.from(this.#needs.randomBytes(4)).readUInt32BE();
      const other = index + (random % (hosts.length - index));
      [hosts[index], hosts[other]] = [hosts[other] as HostRecord, hosts[index] as HostRecord];
    }
    return hosts.slice(0, count);
  }
}

export const shareOf = ({ reservedMemoryMb, capacityMemoryMb }: HostRecord): number =>
  capacityMemoryMb === 0 ? 1 : reservedMemoryMb / capacityMemoryMb;

const serves = (host: HostRecord, { runtime, cpuClass }: Need): boolean =>
  (runtime === "" || host.runtimes.includes(runtime)) &&
  (cpuClass === undefined || host.cpuClass === cpuClass);

const hasRoom =
  ({ memoryMb }: Need, share: number) =>
  ({ reservedMemoryMb, capacityMemoryMb }: HostRecord): boolean =>
    reservedMemoryMb + memoryMb <= capacityMemoryMb * share;

/** The first hosts, by id, that together have room for all that is reserved and some more. */
function packedPrefix(hosts: readonly HostRecord[], moreMb: number): ReadonlySet<string> {
  const { placementPackedShare, placementPackedSlack } = gatewayLimits;
  const reservedMb = hosts.reduce((sum, host) => sum + host.reservedMemoryMb, 0);
  let leftMb = (reservedMb * placementPackedSlack + moreMb) / placementPackedShare;
  const ids = new Set<string>();
  for (const { id, capacityMemoryMb } of hosts) {
    if (leftMb <= 0 && ids.size >= gatewayLimits.placementPackedOf) break;
    ids.add(id);
    leftMb -= capacityMemoryMb;
  }
  return ids;
}
