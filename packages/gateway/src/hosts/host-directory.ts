/**
 * The hosts of this cluster, and which of them are lost. Every gateway has a directory over the same table; the loss of
 * a host is reported by one of them.
 *
 * A directory declares a host lost only after it has watched for `hostLostMs` without a gap: its looks came in time,
 * the database answered, and at most half of the leases had run out. So after an outage of the database or of this
 * gateway every host has time to renew. Keeps no state that must survive a crash.
 */
import { type Clock, type Log, regularly } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { HostDescription, HostGeneration, HostRecord, Hosts, HostState } from "../database/hosts.ts";
import { gatewayLimits } from "../limits.ts";

const { hostRenewMs, hostLeaseMs, hostLostMs } = gatewayLimits;

export class HostDirectory {
  readonly #hosts: Hosts;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #stop = new AbortController();
  /** When the present row of good looks began, and when the last look was; by the monotonic clock. */
  #watchingSinceMs: number | undefined;
  #refreshedAtMs = Number.NEGATIVE_INFINITY;
  #running: Promise<void> | undefined;
  /** Called for each host that this directory declared lost, with the generation that ended. */
  onLost: (host: HostGeneration) => void = () => undefined;

  constructor(hosts: Hosts, clock: Clock, log: Log) {
    this.#hosts = hosts;
    this.#clock = clock;
    this.#log = log;
  }

  start(): void {
    this.#running = this.#watch();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
  }

  /** By id. */
  all(): Promise<HostRecord[]> {
    return this.#hosts.all();
  }

  register(host: HostDescription): Promise<HostRecord> {
    return this.#hosts.register(host, hostLeaseMs);
  }

  /** Throws `failed_precondition` when the lease is no longer this generation's. */
  async renew(host: HostGeneration, leaseMs: number = hostLeaseMs): Promise<HostRecord> {
    const renewed = await this.#hosts.renew(host, leaseMs);
    if (renewed === undefined)
      throw new ClocheError(
        "failed_precondition",
        `generation ${host.generation} of host ${JSON.stringify(host.id)} is over; register again`,
      );
    return renewed;
  }

  /** `open`: the host takes new machines; `cordoned`: it takes none; `draining`: its machines move elsewhere too. */
  async setState(id: string, state: HostState): Promise<void> {
    if (!(await this.#hosts.setState(id, state)))
      throw new ClocheError("not_found", `there is no host ${JSON.stringify(id)}`);
  }

  async #watch(): Promise<void> {
    const failed = (err: unknown): void => {
      this.#watchingSinceMs = undefined;
      this.#log.warn({ err }, "check of host leases failed");
    };
    const { signal } = this.#stop;
    const regular = { everyMs: hostRenewMs, first: "now", clock: this.#clock, signal, failed } as const;
    await regularly(regular, () => this.#refresh());
  }

  async #refresh(): Promise<void> {
    const startedAtMs = this.#clock.monotonicMs();
    const { count, expired } = await this.#hosts.leases();
    const nowMs = this.#clock.monotonicMs();
    // After a pause of more than two intervals this process cannot say which hosts renewed in time.
    const isGap = nowMs - this.#refreshedAtMs > 2 * hostRenewMs || nowMs - startedAtMs > hostRenewMs;
    this.#refreshedAtMs = nowMs;
    if (expired * 2 > count) {
      this.#watchingSinceMs = undefined;
      this.#log.warn({ count, expired }, "most leases of hosts have run out; no host is declared lost");
      return;
    }
    if (isGap || this.#watchingSinceMs === undefined) this.#watchingSinceMs = nowMs;
    if (expired === 0 || nowMs - this.#watchingSinceMs < hostLostMs) return;
    for (const host of await this.#hosts.declareLost(hostLostMs - hostLeaseMs)) {
      this.#log.warn({ host_id: host.id, generation: host.generation }, "a host is lost");
      this.onLost(host);
    }
  }
}
