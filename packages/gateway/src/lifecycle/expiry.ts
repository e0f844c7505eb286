/**
 * Deletes or suspends (on_timeout) sandboxes whose timeout_seconds are over. Expiry times are in the database and
 * survive a restart; this class has one timer, for the next of them. Every hour it also deletes expired idempotency
 * keys and old notes of removed sandboxes.
 */
import type { Clock, Log } from "@cloche/base";
import type { Database } from "../database/database.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import { gatewayLimits } from "../limits.ts";
import type { Lifecycle } from "./lifecycle.ts";
import type { Records } from "./records.ts";

export class Expiry {
  readonly #database: Database;
  readonly #lifecycle: Lifecycle;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #stop = new AbortController();
  #wake = new AbortController();
  #nextMs = Number.POSITIVE_INFINITY;
  #sweptAtMs = 0;
  #running: Promise<void> | undefined;

  constructor(database: Database, records: Records, lifecycle: Lifecycle, clock: Clock, log: Log) {
    this.#database = database;
    this.#lifecycle = lifecycle;
    this.#clock = clock;
    this.#log = log;
    records.listen((_id, record) => {
      if (record?.expiresAtMs !== null && record !== undefined && record.expiresAtMs < this.#nextMs)
        this.#wake.abort();
    });
  }

  start(): void {
    this.#running = this.#run();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    this.#wake.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      this.#wake = new AbortController();
      const latestMs = this.#clock.nowMs() + gatewayLimits.expiryCheckMs;
      try {
        await this.#endExpired();
        await this.#sweepKeys();
        const next = await this.#database.sandboxes.nextExpiryMs();
        this.#nextMs = Math.min(next ?? latestMs, latestMs);
      } catch (error) {
        this.#log.warn({ err: error }, "sandboxes whose time is up could not be ended; tried again");
        this.#nextMs = this.#clock.nowMs() + gatewayLimits.operationRetryMaxMs;
      }
      if (this.#stop.signal.aborted) return;
      const waitMs = Math.max(0, this.#nextMs - this.#clock.nowMs());
      await this.#clock.sleep(waitMs, this.#wake.signal).catch(() => undefined);
    }
  }

  async #sweepKeys(): Promise<void> {
    const nowMs = this.#clock.nowMs();
    if (nowMs - this.#sweptAtMs < gatewayLimits.idempotencySweepMs) return;
    await this.#database.idempotencyKeys.sweep(nowMs);
    await this.#database.sandboxes.forgetRemoved(nowMs - gatewayLimits.removedKeepMs);
    this.#sweptAtMs = nowMs;
  }

  async #endExpired(): Promise<void> {
    for (;;) {
      const nowMs = this.#clock.nowMs();
      const due = await this.#database.sandboxes.expired(nowMs, gatewayLimits.expiryBatch);
      for (const record of due) {
        const caller = { teamId: record.teamId, actor: "system:timeout", requestId: "" };
        // The owner may have extended the time since the record was read.
        const isDue = (r: SandboxRecord): boolean => r.expiresAtMs !== null && r.expiresAtMs <= nowMs;
        if (record.onTimeout === "suspend") await this.#lifecycle.suspendExpired(caller, record, isDue);
        else await this.#lifecycle.delete(caller, record, (r) => isDue(r) && r.onTimeout === "delete");
      }
      if (due.length < gatewayLimits.expiryBatch) return;
    }
  }
}
