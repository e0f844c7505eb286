/**
 * Which host a new machine goes to. The choice uses the hosts' rows as last read, up to 2 s old. The reservation, in
 * the transaction that writes the record, decides whether there is room (database/host-reservations.ts); after a
 * refusal another host is tried, three in all.
 *
 *   spread   of two hosts at random, the one that has less reserved
 *   packed   of eight at random among the first hosts that together have some room left, the fullest that stays below
 *            85 %: the hosts behind them become empty, and an autoscaler can remove them
 *
 * Preferred hosts come first, such as those with a ready machine, then hosts that have the template. No choice looks at
 * all hosts while random hosts fit.
 */
import type { RandomBytes } from "@cloche/protocol";
import { NoRoom } from "../database/host-reservations.ts";
import type { HostRecord } from "../database/hosts.ts";
import { gatewayLimits } from "../limits.ts";
import { type Fleet, isOpen } from "./fleet.ts";

const { placementPackedOf, placementPackedRoom, placementPackedShare, placementSpreadOf, placementTries } =
  gatewayLimits;

export type PlacementStrategy = "packed" | "spread";

/** What a machine needs of its host. */
export interface Need {
  memoryMb: number;
  /** Empty: the host's default. */
  runtime: string;
  template?: string;
  /** Class of the CPU that the memory was saved on; default: any. */
  cpuClass?: string;
  /** Ids of hosts to take first. */
  preferred?: Iterable<string>;
}

/** Chooses a host that was not tried before. Throws NoRoom when there is none. */
export type Choose = (need: Need) => string;

export interface PlacementDependencies {
  fleet: Pick<Fleet, "isCluster" | "ids" | "rows" | "having">;
  strategy: PlacementStrategy;
  randomBytes: RandomBytes;
  /** Called for each machine that no host had room for. */
  onRefused: () => void;
}

/** The open hosts, sorted out once after each read of the rows. */
interface Candidates {
  rows: ReadonlyMap<string, HostRecord>;
  open: readonly HostRecord[];
  /** The first open hosts, which `packed` fills. */
  prefix: readonly HostRecord[];
  prefixIds: ReadonlySet<string>;
}

export class Placement {
  readonly #needs: PlacementDependencies;
  #sorted: Candidates | undefined;

  constructor(needs: PlacementDependencies) {
    this.#needs = needs;
  }

  /**
   * Runs `body`, which chooses a host and writes a record with it; again with other hosts while it throws NoRoom.
   * Throws NoRoom (`unavailable`) after three hosts, or when none is left.
   */
  async place<T>(body: (choose: Choose) => Promise<T>): Promise<T> {
    const { choose, refused } = this.hosts();
    for (;;) {
      try {
        return await body(choose);
      } catch (error) {
        if (!(error instanceof NoRoom)) throw error;
        refused(error);
      }
    }
  }

  /** Hosts for one machine. `refused`: the chosen host threw NoRoom; throws it as well when no other host is tried. */
  hosts(): { choose: Choose; refused: (error: NoRoom) => void } {
    const tried = new Set<string>();
    return {
      choose: (need) => this.choose(need, tried),
      refused: (error) => {
        if (error.hostId === "" || tried.size + 1 >= placementTries) throw this.refused(error);
        tried.add(error.hostId);
        this.#isFull(error.hostId);
      },
    };
  }

  /** Counts the refusal, for an autoscaler. */
  refused(error: NoRoom): NoRoom {
    this.#needs.onRefused();
    return error;
  }

  /** Chooses a host outside `except`; throws NoRoom when none fits. In one process: its host. */
  choose(need: Need, except: ReadonlySet<string> = new Set()): string {
    const { fleet } = this.#needs;
    if (!fleet.isCluster) return fleet.ids()[0] ?? "";
    const candidates = this.#candidates();
    const serves = (host: HostRecord): boolean => !except.has(host.id) && hasWhat(host, need);
    // After a refusal take the host with the most room: a host that is full in these rows may be fuller by now.
    const order = except.size === 0 ? most : least;
    const chosen = this.#chosen(candidates, need, serves, order);
    if (chosen === undefined) throw new NoRoom("");
    // Count the machine at once: the row is read again only later.
    chosen.reservedMemoryMb += need.memoryMb;
    return chosen.id;
  }

  /** Whether some host has room for the machine, by the rows as last read. Reserves nothing. */
  fits(need: Need): boolean {
    return this.#candidates().open.some(
      (host) => hasWhat(host, need) && host.reservedMemoryMb + need.memoryMb <= host.capacityMemoryMb,
    );
  }

  #chosen(
    candidates: Candidates,
    need: Need,
    serves: (host: HostRecord) => boolean,
    packing: Order,
  ): HostRecord | undefined {
    const { strategy, fleet } = this.#needs;
    const rowsOf = (ids: Iterable<string>): HostRecord[] =>
      [...ids]
        .map((id) => candidates.rows.get(id))
        .filter((row) => row !== undefined && isOpen(row)) as HostRecord[];
    const having = need.template === undefined ? [] : fleet.having(need.template);
    const groups = [rowsOf(need.preferred ?? []), rowsOf(having), candidates.open];
    const below = (share: number) => (host: HostRecord) =>
      serves(host) && host.reservedMemoryMb + need.memoryMb <= host.capacityMemoryMb * share;
    if (strategy === "spread") return this.#first(groups, below(1), placementSpreadOf, least);
    const { prefix, prefixIds } = candidates;
    const inPrefix = groups.map((group) =>
      group === candidates.open ? prefix : group.filter(({ id }) => prefixIds.has(id)),
    );
    return (
      this.#first(inPrefix, below(placementPackedShare), placementPackedOf, packing) ??
      this.#first(groups, below(placementPackedShare), placementPackedOf, packing) ??
      this.#first(groups, below(1), placementSpreadOf, least)
    );
  }

  /** From the first group with a host that fits: takes `count` hosts at random, and of these the first in `order`. */
  #first(
    groups: readonly (readonly HostRecord[])[],
    fits: (host: HostRecord) => boolean,
    count: number,
    order: Order,
  ): HostRecord | undefined {
    for (const group of groups) {
      const [chosen] = this.#some(group, fits, count).toSorted(order);
      if (chosen !== undefined) return chosen;
    }
    return undefined;
  }

  /** At most `count` hosts that fit, at random. */
  #some(hosts: readonly HostRecord[], fits: (host: HostRecord) => boolean, count: number): HostRecord[] {
    const found = new Set<HostRecord>();
    for (let attempt = 0; attempt < 4 * count && found.size < count && hosts.length > 0; attempt += 1) {
      const host = hosts[this.#random(hosts.length)];
      if (host !== undefined && fits(host)) found.add(host);
    }
    if (found.size > 0) return [...found];
    const fitting = hosts.filter(fits);
    const start = this.#random(Math.max(1, fitting.length));
    return [...fitting.slice(start), ...fitting.slice(0, start)].slice(0, count);
  }

  #random(below: number): number {
    return Buffer.from(this.#needs.randomBytes(4)).readUInt32BE() % below;
  }

  #candidates(): Candidates {
    const rows = this.#needs.fleet.rows();
    if (this.#sorted?.rows !== rows) {
      const open = [...rows.values()].filter(isOpen);
      const prefix = packedPrefix(open);
      this.#sorted = { rows, open, prefix, prefixIds: new Set(prefix.map(({ id }) => id)) };
    }
    return this.#sorted;
  }

  /** Other gateways have taken the room: treats the host as full until its row is read again. */
  #isFull(hostId: string): void {
    const row = this.#needs.fleet.rows().get(hostId);
    if (row !== undefined) row.reservedMemoryMb = Math.max(row.reservedMemoryMb, row.capacityMemoryMb);
  }
}

export const shareOf = ({ reservedMemoryMb, capacityMemoryMb }: HostRecord): number =>
  capacityMemoryMb === 0 ? 1 : reservedMemoryMb / capacityMemoryMb;

type Order = (a: HostRecord, b: HostRecord) => number;
const least: Order = (a, b) => shareOf(a) - shareOf(b);
const most: Order = (a, b) => shareOf(b) - shareOf(a);

const hasWhat = (host: HostRecord, { runtime, cpuClass }: Need): boolean =>
  (runtime === "" || host.runtimes.includes(runtime)) &&
  (cpuClass === undefined || host.cpuClass === cpuClass);

/**
 * The first hosts, by id, that together have room below 85 % for the share `placementPackedRoom` of all memory: enough
 * for bursts while the rows are old.
 */
function packedPrefix(open: readonly HostRecord[]): readonly HostRecord[] {
  const roomOf = (host: HostRecord): number =>
    Math.max(0, host.capacityMemoryMb * placementPackedShare - host.reservedMemoryMb);
  let wantedMb = open.reduce((sum, host) => sum + host.capacityMemoryMb, 0) * placementPackedRoom;
  let withRoom = 0;
  const end = open.findIndex((host) => {
    if (wantedMb <= 0 && withRoom >= placementPackedOf) return true;
    wantedMb -= roomOf(host);
    if (roomOf(host) > 0) withRoom += 1;
    return false;
  });
  return end < 0 ? open : open.slice(0, end);
}
