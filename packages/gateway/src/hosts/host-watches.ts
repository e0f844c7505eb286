/**
 * Which hosts this gateway watches: compares their machines with the records, counts their use, notes their audit events. All
 * gateways follow every host; one at a time watches it, by a lease in the database. Each watches its part, by how many gateways there
 * are, and gives away what is more; what nobody takes for 10 s it takes all the same: others may not reach that host.
 *
 *   nobody's ──its machines are known here──▶ watched, renewed every 5 s ──not renewed for 10 s, or not known any more──▶ nobody's
 *                                                                            (for the others: 15 s after the last renewal)
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
  /** Hears of each host that is watched from here on. */
  onGained: (hostId: string) => void;
  /** How many share the hosts. */
  gateways: () => number;
  clock: Clock;
  log: Log;
}

/** Whether this gateway may act on what the host tells. */
export interface Watches {
  isMine(hostId: string): boolean;
}

/** Of a gateway that has its only host for itself, or shares it with nobody who would tell it apart. */
export const watchesAll: Watches = { isMine: () => true };

export class HostWatches implements Watches {
  readonly #needs: HostWatchesDependencies;
  readonly #stop = new AbortController();
  /** Until when each is held; by the monotonic clock. */
  readonly #heldUntilMs = new Map<string, number>();
  /** Since when nobody was seen to watch each; by the monotonic clock. */
  readonly #freeSinceMs = new Map<string, number>();
  /** Watched beyond this gateway's part, since nobody else did. */
  readonly #unwanted = new Set<string>();
  #running: Promise<void> | undefined;
  #looking: Promise<void> | undefined;

  constructor(needs: HostWatchesDependencies) {
    this.#needs = needs;
  }

  isMine(hostId: string): boolean {
    return (this.#heldUntilMs.get(hostId) ?? Number.NEGATIVE_INFINITY) > this.#needs.clock.monotonicMs();
  }

  start(): void {
    this.#running = this.#regularly();
  }

  /** Others may watch from here on. */
  async close(): Promise<void> {
    const { hosts, owner, log } = this.#needs;
    this.#stop.abort(new Error("the gateway is closing"));
    this.#heldUntilMs.clear();
    await Promise.all([this.#running, this.#looking]);
    await hosts
      .unwatch(owner)
      .catch((err: unknown) => log.warn({ err }, "the watches of hosts are left to run out"));
  }

  async #regularly(): Promise<void> {
    const { clock } = this.#needs;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await this.look();
      await clock.sleep(hostWatchRenewMs, signal).catch(() => undefined);
    }
  }

  /** Renews what is watched, and takes what nobody watches. */
  look(): Promise<void> {
    this.#looking ??= this.#look()
      .catch((err: unknown) => {
        if (!this.#stop.signal.aborted)
          this.#needs.log.warn({ err }, "the watches of hosts could not be renewed");
      })
      .finally(() => (this.#looking = undefined));
    return this.#looking;
  }

  async #look(): Promise<void> {
    const { clock, hosts, owner } = this.#needs;
    const sentAtMs = clock.monotonicMs();
    const reachable = new Set(this.#needs.reachable());
    const renewed = await hosts.renewWatches(owner, hostWatchMs);
    const [own, given] = this.#parted(renewed, reachable);
    await hosts.unwatch(owner, given);
    const others = new Set(await hosts.watchedByOthers(owner));
    const known = new Set(own);
    const justGiven = new Set(given);
    const isFree = (id: string): boolean => !known.has(id) && !others.has(id) && !justGiven.has(id);
    const free = [...reachable].filter(isFree);
    const wanted = this.#wanted(free, this.#partOf(reachable.size) - own.length, sentAtMs);
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

  /** Those that it goes on with, and those that it gives away: they cannot be reached, or are well beyond its part. */
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

  /** Of the hosts that nobody watches: as many as are missing from its part, and all that were free for long. */
  #wanted(free: readonly string[], missing: number, nowMs: number): string[] {
    const nowFree = new Set(free);
    for (const id of this.#freeSinceMs.keys()) if (!nowFree.has(id)) this.#freeSinceMs.delete(id);
    for (const id of free) if (!this.#freeSinceMs.has(id)) this.#freeSinceMs.set(id, nowMs);
    return free.filter((id, index) => {
      if (index < missing) return true;
      const isLong = nowMs - (this.#freeSinceMs.get(id) ?? nowMs) >= hostWatchHoldMs;
      if (isLong) this.#unwanted.add(id);
      return isLong;
    });
  }
}
