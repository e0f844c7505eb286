/**
 * Empties draining hosts, and finishes every move to another host that was begun.
 *
 *   RUNNING ──suspended by this, a few at once──▶ SUSPENDED, moving ──durable──▶ RESUMING elsewhere ──▶ RUNNING
 *      ▲                                              └── not durable in time, or no room elsewhere: resumed where it is ──┐
 *      └───────────────────────────────── tried again later, with waits that double ◀──────────────────────────────────┘
 *
 * The record's `isMoving` marks a move, so that requests wait for the sandbox and a crash loses no move. If the owner
 * asks for a suspension meanwhile, the move ends. Sandboxes that were suspended before stay on the host until they are
 * resumed; durable ones are then resumed elsewhere. Acts on hosts that this gateway watches. For a move away from a
 * lost host, the first gateway acts.
 */
import { type Clock, type Log, regularly } from "@cloche/base";
import type { Database } from "../database/database.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Fleet } from "../hosts/fleet.ts";
import type { Watches } from "../hosts/host-watches.ts";
import type { Placement } from "../hosts/placement.ts";
import { gatewayLimits } from "../limits.ts";
import type { Caller } from "./audit-log.ts";
import type { Lifecycle } from "./lifecycle.ts";

const { drainRetryMs, drainRetryMaxMs } = gatewayLimits;

export interface DrainsDependencies {
  database: Database;
  lifecycle: Lifecycle;
  fleet: Fleet;
  watches: Watches;
  placement: Placement;
  clock: Clock;
  log: Log;
}

interface Retry {
  atMs: number;
  waitMs: number;
}

export class Drains {
  readonly #needs: DrainsDependencies;
  readonly #stop = new AbortController();
  /** By sandbox, when its move may be tried again. In memory: another gateway tries at once. */
  readonly #retries = new Map<string, Retry>();
  #running: Promise<void> | undefined;

  constructor(needs: DrainsDependencies) {
    this.#needs = needs;
  }

  start(): void {
    this.#running = this.#run();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, log } = this.#needs;
    const { signal } = this.#stop;
    const failed = (err: unknown) => log.warn({ err }, "check of moves to other hosts failed");
    const everyMs = gatewayLimits.drainPollMs;
    await regularly({ everyMs, first: "now", clock, signal, failed }, () => this.#check());
  }

  async #check(): Promise<void> {
    const { database, fleet } = this.#needs;
    const moving = await database.sandboxes.moving(gatewayLimits.drainBatch);
    await Promise.all(moving.filter((one) => this.#isOurs(one)).map((one) => this.#resume(one)));
    for (const { id, state } of fleet.rows().values())
      if (state === "draining" && this.#isMine(id)) await this.#drain(id);
  }

  #isMine(hostId: string): boolean {
    const { fleet, watches } = this.#needs;
    return !this.#stop.signal.aborted && fleet.isSyncedWith(hostId) && watches.isMine(hostId);
  }

  #isOurs({ hostId }: SandboxRecord): boolean {
    return this.#needs.fleet.isLost(hostId) || this.#isMine(hostId);
  }

  async #resume(record: SandboxRecord): Promise<void> {
    const { clock, lifecycle, log } = this.#needs;
    const { id, image, isHostLost, updatedAtMs } = record;
    // Wait for the image to be in storage. A sandbox whose image is late is resumed on its own host.
    const isLate = clock.nowMs() - updatedAtMs >= gatewayLimits.drainStoreMs;
    if ((image === "" && !isLate) || isHostLost || this.#isTooSoon(id)) return;
    this.#later(id);
    await lifecycle
      .resume(callerOf(record), record)
      .catch((error: unknown) =>
        log.warn({ err: error, sandbox_id: id }, "a sandbox on its way to another host waits"),
      );
  }

  async #drain(hostId: string): Promise<void> {
    const { database, lifecycle, placement } = this.#needs;
    const records = await database.sandboxes.ofHost(hostId);
    let slots = gatewayLimits.drainAtOnce - records.filter(({ isMoving }) => isMoving).length;
    for (const record of records) {
      if (record.state !== "SANDBOX_STATE_RUNNING" || this.#isTooSoon(record.id)) continue;
      if (slots <= 0) return;
      if (placement.fits(record) && (await lifecycle.suspendToMove(callerOf(record), record))) slots -= 1;
    }
  }

  #isTooSoon(sandboxId: string): boolean {
    const retry = this.#retries.get(sandboxId);
    return retry !== undefined && this.#needs.clock.nowMs() < retry.atMs;
  }

  /** Sets when the sandbox's move may be tried again. Old entries are dropped here, those of moved sandboxes too. */
  #later(sandboxId: string): void {
    const nowMs = this.#needs.clock.nowMs();
    const before = this.#retries.get(sandboxId)?.waitMs ?? drainRetryMs / 2;
    const waitMs = Math.min(before * 2, drainRetryMaxMs);
    this.#retries.set(sandboxId, { waitMs, atMs: nowMs + waitMs });
    for (const [id, { atMs }] of this.#retries) if (nowMs - atMs > drainRetryMaxMs) this.#retries.delete(id);
  }
}

const callerOf = ({ teamId }: SandboxRecord): Caller => ({ teamId, actor: "system:drain", requestId: "" });
