/**
 * Which hosts this gateway watches. To watch a host is to compare its machines with the records, count their use and
 * write its audit events. All gateways follow every host, but only one at a time watches it, by a lease in the
 * database. Each gateway watches its share of the hosts and gives away the others. A host that nobody watched for 10 s
 * is taken beyond the share too: other gateways may not reach it.
 *
 *   unwatched ──its machines are known here──▶ watched, renewed every 5 s
 *       ◀──not renewed for 10 s (for other gateways: 15 s after the last renewal), or no longer known──┘
 */
import type { Clock, Log } from "@cloche/base";
import type { Hosts } from "../database/hosts.ts";
import { gatewayLimits } from "../limits.ts";

const { hostWatchesAtOnce, hostWatchMs, hostWatchRenewMs, hostWatchHoldMs } = gatewayLimits;

export interface HostWatchesDependencies {
  hosts: Pick<Hosts, "watch" | "renewWatches" | "watchedByOthers" | "unwatch">;
  /** Names this process among the gateways of its database; never used again. */
  owner: string;
  /** Ids of the hosts whose machines are known here. */
  reachable: () => string[];
  /** Called for each host that this gateway begins to watch. */
  onGained: (hostId: string) => void;
  /** How many gateways share the hosts. */
  gateways: () => number;
  clock: Clock;
  log: Log;
}

/** Says whether this gateway may act on the host's reports. */
export interface Watches {
  isMine(hostId: string): boolean;
}

/** For one process: the gateway watches its only host. */
export const watchesAll: Watches = { isMine: () => true };

export class HostWatches implements Watches {
  readonly #needs: HostWatchesDependencies;
  readonly #stop = new AbortController();
  /** By host, until when its watch is held; by the monotonic clock. */
  readonly #heldUntilMs = new Map<string, number>();
  /** By host, since when no gateway was seen to watch it; by the monotonic clock. */
  readonly #unwatchedSinceMs = new Map<string, number>();
  /** Hosts watched beyond this gateway's share, because no other gateway did. */
  readonly #unwanted = new Set<string>();
  #running: Promise<void> | undefined;
  #refreshing: Promise<void> | undefined;

  constructor(needs: HostWatchesDependencies) {
    this.#needs = needs;
  }

  isMine(hostId: string): boolean {
    return (this.#heldUntilMs.get(hostId) ?? Number.NEGATIVE_INFINITY) > this.#needs.clock.monotonicMs();
  }

  start(): void {
    this.#running = this.#regularly();
  }

  /** Gives all hosts away, so that other gateways can watch them at once. */
  async close(): Promise<void> {
    const { hosts, owner, log } = this.#needs;
    this.#stop.abort(new Error("the gateway is closing"));
    this.#heldUntilMs.clear();
    await Promise.all([this.#running, this.#refreshing]);
    await hosts
      .unwatch(owner)
      .catch((err: unknown) => log.warn({ err }, "the watches of hosts are left to run out"));
  }

  async #regularly(): Promise<void> {
    const { clock } = this.#needs;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await this.refresh();
      await clock.sleep(hostWatchRenewMs, signal).catch(() => undefined);
    }
  }

  /** Renews the watches, and takes hosts that nobody watches. */
  refresh(): Promise<void> {
    this.#refreshing ??= this.#refresh()
      .catch((err: unknown) => {
        if (!this.#stop.signal.aborted) this.#needs.log.warn({ err }, "renewal of host watches failed");
      })
      .finally(() => (this.#refreshing = undefined));
    return this.#refreshing;
  }

  async #refresh(): Promise<void> {
    const { clock, hosts, owner } = this.#needs;
    const sentAtMs = clock.monotonicMs();
    const reachable = new Set(this.#needs.reachable());
    const renewed = await hosts.renewWatches(owner, hostWatchMs);
    const [own, given] = this.#parted(renewed, reachable);
    await hosts.unwatch(owner, given);
    const others = new Set(await hosts.watchedByOthers(owner));
    const known = new Set(own);
    const justGiven = new Set(given);
    const isUnwatched = (id: string): boolean => !known.has(id) && !others.has(id) && !justGiven.has(id);
    const unwatched = [...reachable].filter(isUnwatched);
    const wanted = this.#wanted(unwatched, this.#partOf(reachable.size) - own.length, sentAtMs);
    const taken: string[] = [];
    for (let start = 0; start < wanted.length; start += hostWatchesAtOnce)
      taken.push(...(await hosts.watch(owner, wanted.slice(start, start + hostWatchesAtOnce), hostWatchMs)));
    if (this.#stop.signal.aborted) return;
    this.#hold([...own, ...taken], sentAtMs);
  }

  #hold(ids: readonly string[], sentAtMs: number): void {
    const gained = ids.filter((id) => !this.isMine(id));
    this.#heldUntilMs.clear();
    for (const id of ids) this.#heldUntilMs.set(id, sentAtMs + hostWatchHoldMs);
    for (const id of gained) if (this.isMine(id)) this.#needs.onGained(id);
  }

  #partOf(hosts: number): number {
    return Math.ceil(hosts / Math.max(1, this.#needs.gateways()));
  }

  /** Splits the watched hosts into those to keep and those to give away: out of reach, or well beyond the share. */
  #parted(renewed: readonly string[], reachable: ReadonlySet<string>): [string[], string[]] {
    const most = Math.ceil(this.#partOf(reachable.size) * 1.1) + 1;
    const own: string[] = [];
    const given: string[] = [];
    for (const id of renewed) {
      const isKept = reachable.has(id) && (this.#unwanted.has(id) || own.length < most);
      (isKept ? own : given).push(id);
    }
    for (const id of given) this.#unwanted.delete(id);
    return [own, given];
  }

  /** The unwatched hosts to take: as many as are missing from this gateway's share, and all that were unwatched for long. */
  #wanted(unwatched: readonly string[], missing: number, nowMs: number): string[] {
    const nowUnwatched = new Set(unwatched);
    for (const id of this.#unwatchedSinceMs.keys())
      if (!nowUnwatched.has(id)) this.#unwatchedSinceMs.delete(id);
    for (const id of unwatched) if (!this.#unwatchedSinceMs.has(id)) this.#unwatchedSinceMs.set(id, nowMs);
    return unwatched.filter((id, index) => {
      if (index < missing) return true;
      const isLong = nowMs - (this.#unwatchedSinceMs.get(id) ?? nowMs) >= hostWatchHoldMs;
      if (isLong) this.#unwanted.add(id);
      return isLong;
    });
  }
}
