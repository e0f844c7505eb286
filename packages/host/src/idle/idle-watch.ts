/**
 * Reports machines that have been idle for their limit. Activity is: requests, running execs and traffic of services, as the
 * agent reports them, and CPU time of users' processes.
 *
 * Owns only the last observation of each machine; after a restart of the service every machine gets its full time again.
 */
import { type Clock, type Log, Polls } from "@cloche/base";
import type { Agents } from "../agent-calls/agents.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";
import { Rounds } from "./rounds.ts";

/** CPU use above this share of one core since the last look is activity. Timers of a sleeping interpreter stay below it. */
const cpuShare = 0.02;
const checksPerLimit = 4;
const checkEveryMinMs = 1_000;
const checkEveryMaxMs = 15_000;

interface Seen {
  epoch: number;
  checkedAtMs: number;
  activeAtMs: number;
  cpuMs: number | undefined;
}

export interface IdleWatchParts {
  machines: Machines;
  agents: Agents;
  clock: Clock;
  log: Log;
}

export class IdleWatch {
  readonly #parts: IdleWatchParts;
  readonly #seen = new Map<string, Seen>();
  readonly #polls: Polls;
  readonly #rounds: Rounds;

  constructor(parts: IdleWatchParts) {
    this.#parts = parts;
    this.#polls = new Polls(parts.clock);
    this.#rounds = new Rounds(parts.clock, checkEveryMinMs, () => this.check());
  }

  start(): void {
    this.#rounds.start();
  }

  async stop(): Promise<void> {
    await this.#rounds.stop();
  }

  /** Looks at every machine that is due, and reports those that are idle. */
  async check(): Promise<void> {
    const due = this.#parts.machines
      .all()
      .filter((record) => record.phase === "running" && record.idleSuspendSeconds > 0);
    for (const id of this.#seen.keys()) if (!due.some((record) => record.id === id)) this.#seen.delete(id);
    await this.#polls.each(
      due,
      (record) => this.#checkOne(record),
      () => this.#rounds.stopped,
    );
  }

  async #checkOne(record: MachineRecord): Promise<void> {
    const { machines, agents, clock, log } = this.#parts;
    const nowMs = clock.monotonicMs();
    const limitMs = record.idleSuspendSeconds * 1_000;
    const everyMs = Math.min(checkEveryMaxMs, Math.max(checkEveryMinMs, limitMs / checksPerLimit));
    let seen = this.#seen.get(record.id);
    // Resumed or started meanwhile: the last observation belongs to another run.
    if (!seen || seen.epoch !== record.epoch) {
      seen = { epoch: record.epoch, checkedAtMs: nowMs, activeAtMs: nowMs, cpuMs: undefined };
      this.#seen.set(record.id, seen);
      return;
    }
    if (nowMs - seen.checkedAtMs < everyMs && nowMs - seen.activeAtMs < limitMs) return;
    try {
      // A dozing machine is not asked: nothing has happened since its last answer.
      const activity = machines.doze.activityOf(record.id) ?? (await agents.of(record).getActivity());
      const sinceMs = nowMs - seen.checkedAtMs;
      const cpuMs = Number(activity.cpuMs);
      const usedMs = seen.cpuMs === undefined ? 0 : cpuMs - seen.cpuMs;
      const working =
        activity.runningExecs > 0 || activity.openRequests > 0 || usedMs > Math.max(1, sinceMs * cpuShare);
      const quietMs = Math.max(0, clock.nowMs() - Number(activity.lastActivityUnixMs));
      seen.activeAtMs = working ? nowMs : Math.max(seen.activeAtMs, nowMs - quietMs);
      seen.checkedAtMs = nowMs;
      seen.cpuMs = cpuMs;
      if (nowMs - seen.activeAtMs < limitMs || this.#rounds.stopped) return;
      // If the suspension fails, it is tried again after the same time.
      seen.activeAtMs = nowMs;
      machines.reportIdle(record.id);
    } catch (error) {
      // A machine whose agent does not answer does not count as idle.
      seen.activeAtMs = nowMs;
      log.debug({ err: error, sandbox_id: record.id }, "activity not known");
    }
  }
}
