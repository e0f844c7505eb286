/**
 * Which of several gateways on one database runs an operation.
 *
 *   begun here ──▶ renewed every 2.5 s ──ended──▶ gone
 *                    │ not renewed for 7.5 s: dropped here
 *                    ▼
 *                  over after 10 s ──the first gateway that looks──▶ taken over: next attempt, begun again there
 *
 * The attempt number is a fence: writes of a former owner carry an older number and are refused
 * (database/operations.ts). Steps can be repeated, so the next owner begins again. A gateway that is alone on its
 * database uses no leases.
 */
import { type Clock, type Log, regularly } from "@cloche/base";
import type { Operations } from "../database/operations.ts";
import { gatewayLimits } from "../limits.ts";
import type { OperationRunner } from "./operation-runner.ts";

const { operationHoldMs, operationPollMs } = gatewayLimits;

export interface OperationLeasesDependencies {
  operations: Operations;
  runner: OperationRunner;
  /** Names this process among the gateways of its database; never used again. */
  owner: string;
  clock: Clock;
  log: Log;
}

export class OperationLeases {
  readonly #needs: OperationLeasesDependencies;
  readonly #stop = new AbortController();
  /** When the last renewal that succeeded was sent; by the monotonic clock. */
  #renewedAtMs: number;
  #running: Promise<unknown> | undefined;

  constructor(needs: OperationLeasesDependencies) {
    this.#needs = needs;
    this.#renewedAtMs = needs.clock.monotonicMs();
  }

  start(): void {
    this.#running = Promise.all([
      this.#regularly(() => this.#renew()),
      this.#regularly(() => this.#takeOver()),
    ]);
  }

  /** Call it after the runner has dropped its operations: other gateways take them over at once. */
  async close(): Promise<void> {
    const { operations, owner, log } = this.#needs;
    this.#stop.abort(new Error("the gateway is closing"));
    await this.#running;
    await operations
      .release(owner)
      .catch((err: unknown) => log.warn({ err }, "leases of operations are left to run out"));
  }

  async #regularly(task: () => Promise<void>): Promise<void> {
    const { clock, log } = this.#needs;
    const { signal } = this.#stop;
    const failed = (err: unknown) => log.warn({ err }, "check of operation leases failed");
    await regularly({ everyMs: operationPollMs, first: "now", clock, signal, failed }, task);
  }

  async #renew(): Promise<void> {
    const { clock, operations, owner, runner } = this.#needs;
    const sentAtMs = clock.monotonicMs();
    const ids = runner.running();
    if (ids.length === 0) {
      this.#renewedAtMs = sentAtMs;
      return;
    }
    const heldUntilMs = this.#renewedAtMs + operationHoldMs;
    const answered = new AbortController();
    const signal = AbortSignal.any([answered.signal, this.#stop.signal]);
    try {
      // A query may hang for longer than the lease holds.
      const isOver = clock.sleep(heldUntilMs - sentAtMs, signal).then(
        () => "over" as const,
        () => "stopped" as const,
      );
      const renewed = await Promise.race([operations.renew(owner, ids), isOver]);
      if (renewed === "over") return this.#dropAll();
      if (renewed === "stopped") return;
      this.#renewedAtMs = sentAtMs;
      runner.drop(ids.filter((id) => !renewed.includes(id)));
    } catch (error) {
      if (clock.monotonicMs() >= heldUntilMs) this.#dropAll();
      throw error;
    } finally {
      answered.abort();
    }
  }

  #dropAll(): void {
    const { clock, runner } = this.#needs;
    runner.drop(runner.running());
    // Operations begun from now on have new leases.
    this.#renewedAtMs = clock.monotonicMs();
  }

  async #takeOver(): Promise<void> {
    const { log, operations, owner, runner } = this.#needs;
    for (const operation of await operations.takeOver(owner, runner.running())) {
      const { id, kind, sandboxId, attempt } = operation;
      log.warn({ operation_id: id, sandbox_id: sandboxId, attempt }, `${kind} is taken over`);
      runner.goOn(operation);
    }
  }
}
