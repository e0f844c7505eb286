/**
 * Keeps the counted compute time true to what machines really did. Changes of state open and close the intervals
 * (database/usage.ts). This class moves `seen_at`, the time until which a machine was seen to run, and splits an
 * interval whose machine ended and started again unobserved. A crash loses at most what happened since the last
 * comparison.
 */
import { type Clock, type Log, SerialQueue } from "@cloche/base";
import { type Machine, MachinePhase } from "@cloche/protocol/host";
import type { Database } from "../database/database.ts";
import { gatewayLimits } from "../limits.ts";

export class UsageWatch {
  readonly #usage: Database["usage"];
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #queue = new SerialQueue();
  /** Machines that ran when this process last saw them. */
  readonly #running = new Set<string>();
  #prunedAtMs = 0;

  constructor(usage: Database["usage"], clock: Clock, log: Log) {
    this.#usage = usage;
    this.#clock = clock;
    this.#log = log;
  }

  /** The host reported a machine; `undefined`: it is gone. */
  changed(sandboxId: string, machine: Machine | undefined): void {
    const nowMs = this.#clock.nowMs();
    if (machine?.phase === MachinePhase.RUNNING) {
      this.#running.add(sandboxId);
      const sinceMs = Number(machine.runningSinceUnixMs);
      if (sinceMs > 0) this.#inTurn(sandboxId, () => this.#usage.startedAnew(sandboxId, sinceMs));
    } else if (this.#running.delete(sandboxId)) {
      this.#inTurn(sandboxId, () => this.#usage.seen([sandboxId], nowMs));
    }
  }

  /** Resolves when all that the host reported of this machine is noted. */
  async noted(sandboxId: string): Promise<void> {
    await this.#queue.run(sandboxId, () => Promise.resolve());
  }

  /** Notes a complete listing of a host's machines. */
  async compare(machines: readonly Machine[]): Promise<void> {
    const nowMs = this.#clock.nowMs();
    const running = new Map(
      machines.filter(({ phase }) => phase === MachinePhase.RUNNING).map((one) => [one.sandboxId, one]),
    );
    const ranThrough: string[] = [];
    for (const { sandboxId, startedAtMs } of await this.#usage.open([...running.keys()])) {
      const sinceMs = Number(running.get(sandboxId)?.runningSinceUnixMs ?? 0);
      if (sinceMs > startedAtMs) await this.#usage.startedAnew(sandboxId, sinceMs);
      else ranThrough.push(sandboxId);
    }
    await this.#usage.seen(ranThrough, nowMs);
    for (const id of ranThrough) this.#running.add(id);
    if (nowMs - this.#prunedAtMs < gatewayLimits.usagePruneMs) return;
    this.#prunedAtMs = nowMs;
    await this.#usage.prune(nowMs - gatewayLimits.usageKeepMs);
  }

  /** Notes that the machines run until now: this process leaves them running, or the host stops them after it. */
  async close(): Promise<void> {
    await this.#queue.drain();
    const running = [...this.#running];
    this.#running.clear();
    await this.#usage.seen(running, this.#clock.nowMs()).catch(this.#notNoted);
  }

  #inTurn(sandboxId: string, note: () => Promise<void>): void {
    void this.#queue.run(sandboxId, note).catch(this.#notNoted);
  }

  readonly #notNoted = (error: unknown): void => {
    this.#log.warn({ err: error }, "run time of a machine not recorded");
  };
}
