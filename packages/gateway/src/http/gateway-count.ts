/**
 * Counts the gateways of this database, so that limits of a team hold over all of them: each allows its share. Counted
 * every 5 s; while the database is away the last count is used. A gateway that starts counts itself before its first
 * call, and the others know of it within 5 s; until then they may allow more together than the limit. A gateway that
 * died counts for 15 s more.
 */
import { type Clock, type Log, regularly } from "@cloche/base";
import type { Gateways } from "../database/gateways.ts";
import { gatewayLimits } from "../limits.ts";

const { gatewayLeaseMs, gatewayRenewMs } = gatewayLimits;

export class GatewayCount {
  readonly #gateways: Gateways;
  readonly #owner: string;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #stop = new AbortController();
  #count = 1;
  #running: Promise<void> | undefined;

  /** `owner`: names this process among the gateways of its database. */
  constructor(gateways: Gateways, owner: string, clock: Clock, log: Log) {
    this.#gateways = gateways;
    this.#owner = owner;
    this.#clock = clock;
    this.#log = log;
  }

  /** At least 1. */
  get count(): number {
    return this.#count;
  }

  async start(): Promise<void> {
    await this.#look();
    this.#running = this.#regularly();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
    await this.#gateways.leave(this.#owner).catch((err: unknown) => {
      this.#log.debug({ err }, "the other gateways count this one until its lease is over");
    });
  }

  async #look(): Promise<void> {
    this.#count = Math.max(1, await this.#gateways.renew(this.#owner, gatewayLeaseMs));
  }

  async #regularly(): Promise<void> {
    const { signal } = this.#stop;
    const failed = (err: unknown) =>
      this.#log.warn({ err, count: this.#count }, "count of gateways failed; the last count holds");
    const regular = { everyMs: gatewayRenewMs, first: "later", clock: this.#clock, signal, failed } as const;
    await regularly(regular, () => this.#look());
  }
}
