/**
 * Keeps what is counted as compute time to what machines really did: how far a RUNNING sandbox's machine has been seen to run, and
 * whether it ran through. States open and close the intervals (database/usage.ts); this only moves `seen_at`, and splits an interval whose
 * machine ended and began again while nobody looked. What a crash takes with it is at most what happened since the last comparison.
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
  /** Machines that this process has seen to run since it last saw them otherwise. */
  readonly #running = new Set<string>();
  #prunedAtMs = 0;

  constructor(usage: Database["usage"], clock: Clock, log: Log) {
    this.#usage = usage;
    this.#clock = clock;
    this.#log = log;
  }

  /** The host told of a machine; `undefined`: it is gone. */
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

  /** Resolves when what the host told of this machine is noted. */
  async noted(sandboxId: string): Promise<void> {
    await this.#queue.run(sandboxId, () => Promise.resolve());
  }

  /** A complete listing of a host's machines. */
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

  /** The last look of this process: machines that it leaves running, or that the host stops after it. */
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
    this.#log.warn({ err: error }, "how far a machine has run could not be noted");
  };
}
