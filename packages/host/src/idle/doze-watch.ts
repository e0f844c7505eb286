/**
 * Decides which running machines may doze (doze.ts): a machine whose driver can freeze it and that had no users' processes, active
 * services, execs or requests for the time of the setting. Asks the agents, like idle-watch.ts, and busy machines ever more rarely.
 * While many machines are awake a shorter quiet time is enough: each takes some 4 % of a processor from those that work.
 *
 * Owns only the time of the next look at each machine; after a restart of the service all begin anew.
 */
import { availableParallelism } from "node:os";
import { type Clock, type Log, Polls, type SerialQueue } from "@cloche/base";
import type { Activity } from "../machines/doze.ts";
import type { Agents } from "../agent-calls/agents.ts";
import type { Drivers } from "../drivers/drivers.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";
import { Rounds } from "./rounds.ts";

const tickMs = 250;
/** With more machines awake for each processor than this, crowdedAfterMs applies. */
const crowdPerCpu = 6;
const crowdedAfterMs = 250;
/** The wait before the next look at a busy machine doubles each time, up to this. */
const checkEveryMaxMs = 30_000;

interface Plan {
  epoch: number;
  sinceMs: number;
  /** Time from `sinceMs` to the next look. */
  waitMs: number;
}

export interface DozeWatchParts {
  machines: Machines;
  queue: SerialQueue;
  agents: Agents;
  drivers: Drivers;
  clock: Clock;
  log: Log;
}

export class DozeWatch {
  readonly #parts: DozeWatchParts;
  readonly #afterMs: number;
  readonly #crowd: number;
  #isCrowded = false;
  readonly #plans = new Map<string, Plan>();
  readonly #polls: Polls;
  readonly #rounds: Rounds;

  /** `afterMs` 0: no machine dozes. */
  constructor(parts: DozeWatchParts, afterMs: number, cpus = availableParallelism()) {
    this.#parts = parts;
    this.#afterMs = afterMs;
    this.#crowd = cpus * crowdPerCpu;
    this.#polls = new Polls(parts.clock);
    this.#rounds = new Rounds(parts.clock, tickMs, () => this.check());
  }

  start(): void {
    if (this.#afterMs > 0) this.#rounds.start();
  }

  async stop(): Promise<void> {
    await this.#rounds.stop();
  }

  /** Looks at every machine that is due, and freezes those that may doze. */
  async check(): Promise<void> {
    const { machines, clock } = this.#parts;
    const nowMs = clock.monotonicMs();
    const able = machines.all().filter((record) => this.#isAble(record));
    const ids = new Set(able.map(({ id }) => id));
    for (const id of this.#plans.keys()) if (!ids.has(id)) this.#plans.delete(id);
    this.#isCrowded = able.filter(({ id }) => !machines.doze.isAnnounced(id)).length > this.#crowd;
    await this.#polls.each(
      able.filter((record) => this.#isDue(record, nowMs)),
      (record) => this.#checkOne(record, nowMs),
      () => this.#rounds.stopped,
    );
  }

  /** Freezes an announced machine, in its turn, so that no operation runs. */
  async #freeze(id: string): Promise<void> {
    const { machines, queue, agents, log } = this.#parts;
    const { doze } = machines;
    if (this.#rounds.stopped) return;
    await queue.run(id, async () => {
      const record = machines.find(id);
      if (record === undefined || !this.#isAble(record)) return await doze.rouse(id);
      // `agents.of` would rouse the machine.
      const agent = agents.ofDozing(record);
      try {
        await doze.freeze(id, async (then) => {
          const now = await agent.getActivity();
          return isQuiet(now) && now.lastActivityUnixMs === then.lastActivityUnixMs;
        });
      } catch (error) {
        log.debug({ err: error, sandbox_id: id }, "a machine does not doze");
      }
    });
  }

  #isAble(record: MachineRecord): boolean {
    return record.phase === "running" && this.#parts.drivers.find(record.runtime)?.freezer !== undefined;
  }

  #isDue(record: MachineRecord, nowMs: number): boolean {
    const { doze } = this.#parts.machines;
    if (doze.isAnnounced(record.id)) return false;
    const plan = this.#plans.get(record.id);
    if (plan !== undefined && plan.epoch === record.epoch) {
      // Even in a crowd, a machine that was busy at the last look is not asked more often.
      const waitMs = plan.waitMs > this.#afterMs ? plan.waitMs : Math.min(plan.waitMs, this.#quietForMs);
      return plan.sinceMs + waitMs <= nowMs;
    }
    this.#plan(record, nowMs, this.#afterMs);
    return false;
  }

  /** How long a machine must have been quiet, at the present load. */
  get #quietForMs(): number {
    return this.#isCrowded ? Math.min(crowdedAfterMs, this.#afterMs) : this.#afterMs;
  }

  #plan({ id, epoch }: MachineRecord, sinceMs: number, waitMs: number): void {
    this.#plans.set(id, { epoch, sinceMs, waitMs });
  }

  async #checkOne(record: MachineRecord, nowMs: number): Promise<void> {
    const { machines, queue, agents, clock, log } = this.#parts;
    const waitedMs = this.#plans.get(record.id)?.waitMs ?? this.#afterMs;
    const later = (): void => this.#plan(record, nowMs, Math.min(checkEveryMaxMs, waitedMs * 2));
    // An operation runs, or waits.
    if (queue.isBusy(record.id)) return this.#plan(record, nowMs, this.#afterMs);
    try {
      const activity = await agents.of(record).getActivity();
      if (!isQuiet(activity)) return later();
      const quietMs = clock.nowMs() - Number(activity.lastActivityUnixMs);
      const leftMs = Math.min(this.#afterMs, this.#quietForMs - quietMs);
      if (leftMs > 0) return this.#plan(record, nowMs, leftMs);
      if (this.#rounds.stopped) return;
      machines.doze.announce(record.id, activity);
      // Once roused, the machine gets its full time again.
      this.#plans.delete(record.id);
      await this.#freeze(record.id);
    } catch (error) {
      // Never freeze a machine whose agent does not answer.
      later();
      log.debug({ err: error, sandbox_id: record.id }, "whether a machine may doze is not known");
    }
  }
}

/** No program of users runs, and no request is open. */
const isQuiet = ({ runningExecs, openRequests, processes, activeServices }: Activity): boolean =>
  runningExecs === 0 && openRequests === 0 && processes === 0 && activeServices === 0;
