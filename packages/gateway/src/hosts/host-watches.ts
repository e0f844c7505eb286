/**
 * Which hosts this gateway watches: compares their machines with the records, counts their use, notes their audit events. All
 * gateways follow every host; one at a time watches it, by a lease in the database.
 *
 *   nobody's ──its machines are known here──▶ watched, renewed every 5 s ──not renewed for 10 s, or not known any more──▶ nobody's
 *                                                                            (for the others: 15 s after the last renewal)
 */
import type { Clock, Log } from "@cloche/base";
import type { Hosts } from "../database/hosts.ts";
import { gatewayLimits } from "../limits.ts";

const { hostWatchMs, hostWatchRenewMs, hostWatchHoldMs } = gatewayLimits;

export interface HostWatchesDependencies {
  hosts: Pick<Hosts, "watch" | "unwatch">;
  /** Names this process among the gateways of its database; never used again. */
  owner: string;
  /** Ids of the hosts whose machines are known here. */
  reachable: () => string[];
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
  #running: Promise<void> | undefined;
  #looking: Promise<void> | undefined;
  /** Hears of each host that is watched from here on. */
  onGained: (hostId: string) => void = () => undefined;

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
    const { clock, hosts, owner, reachable } = this.#needs;
    const sentAtMs = clock.monotonicMs();
    const watched = await hosts.watch(owner, reachable(), hostWatchMs);
    if (this.#stop.signal.aborted) return;
    const gained = watched.filter((id) => !this.isMine(id));
    this.#heldUntilMs.clear();
    for (const id of watched) this.#heldUntilMs.set(id, sentAtMs + hostWatchHoldMs);
    for (const id of gained) if (this.isMine(id)) this.onGained(id);
  }
}
