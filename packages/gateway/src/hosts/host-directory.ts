/**
 * Who is a host of this cluster, and who is lost. Every gateway has a directory over the one table; each host that is lost is
 * told to one of them.
 *
 * A host is declared lost only by a directory that has watched for `hostLostMs` without a gap: its looks came in time, the
 * database answered, and at most half of the leases had run out. So an outage of the database or of this gateway ends with
 * every host having had the time to renew. Owns nothing that must survive.
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
  /** Since when every look was a good one, and when the last was; by the monotonic clock. */
  #watchingSinceMs: number | undefined;
  #lookedAtMs = Number.NEGATIVE_INFINITY;
  #running: Promise<void> | undefined;
  /** Hears of each host that this directory declared lost, with the generation that ended. */
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

  /** `cordoned`: it takes no new machines; `draining`: those it has move elsewhere too; `open`: neither. */
  async setState(id: string, state: HostState): Promise<void> {
    if (!(await this.#hosts.setState(id, state)))
      throw new ClocheError("not_found", `there is no host ${JSON.stringify(id)}`);
  }

  async #watch(): Promise<void> {
    const failed = (err: unknown): void => {
      this.#watchingSinceMs = undefined;
      this.#log.warn({ err }, "the leases of hosts could not be looked at");
    };
    const { signal } = this.#stop;
    const regular = { everyMs: hostRenewMs, first: "now", clock: this.#clock, signal, failed } as const;
    await regularly(regular, () => this.#look());
  }

  async #look(): Promise<void> {
    const startedAtMs = this.#clock.monotonicMs();
    const { count, expired } = await this.#hosts.leases();
    const nowMs = this.#clock.monotonicMs();
    // Twice the interval: a process that stood still for longer saw nothing.
    const isGap = nowMs - this.#lookedAtMs > 2 * hostRenewMs || nowMs - startedAtMs > hostRenewMs;
    this.#lookedAtMs = nowMs;
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
