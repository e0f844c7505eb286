/**
 * Finds fork bombs and kills them from outside while the machine is paused: then it cannot fork. The agent inside gets no CPU time to do
 * so, and would need seconds to read /proc. One timer for all machines of a driver. storm.ts decides which processes are the bomb.
 *
 *   calm ──many tasks, busy──▶ asked ──the agent answers──▶ asked again soon
 *     ▲                          ├──no answer for unansweredMs──▶ struck: paused, the bomb killed, resumed
 *     │                          └──memory runs out──────▶ struck
 *     └──few tasks, or it stands still because of us
 */
import { boundedLog, type Clock, type Log, systemClock } from "@cloche/base";
import {
  crowdedBy,
  crowdTasks,
  crowdOf,
  isBusy,
  type Load,
  type Memory,
  guardIsLate,
  memoryForecast,
  type Storm,
} from "../storm.ts";

/** A machine as the watch sees it; the same object for as long as it lives. */
export interface StormyMachine {
  readonly id: string;
  /** Whether we keep it from running: frozen, or in the middle of a snapshot. */
  readonly standsStill: boolean;
  readonly memory: Memory;
  /** How many processes it may have. */
  readonly processLimit: number;
  /** Number of host tasks. Cheap: called for every machine at every look. */
  tasks(): number;
  load(atMs: number): Load;
  /** Whether its agent answers, within `timeoutMs`. */
  healthy(timeoutMs: number): Promise<boolean>;
  /** Kills the program that has by far the most processes, if it has more than `crowd`. */
  endStorm(crowd: number): Promise<Storm | undefined>;
}

const checkEveryMs = 200;
const answerMs = 750;
const askEveryMs = 750;
/** A storm leaves the agent no turn at all; a busy machine's agent answers late. */
const unansweredMs = 1_500;
/** After a pause, also in vain, the machine runs for at least this long. */
const inVainMs = 1_000;
/** Rest after a failed pause. A hanging sentry counts as paused by us meanwhile, so health-watch.ts needs this rest to find it. */
const failedMs = 300_000;

interface Seen {
  load?: Load | undefined;
  asking: boolean;
  /** The load when its agent was last asked. */
  asked?: Load;
  /** The load when its agent first did not answer. */
  unanswered?: Load | undefined;
  striking: boolean;
  notBeforeMs: number;
}

export class StormWatch {
  readonly #log: Log;
  readonly #clock: Clock;
  #seen = new WeakMap<StormyMachine, Seen>();
  #timer: NodeJS.Timeout | undefined;

  constructor(log: Log, clock: Clock = systemClock) {
    this.#log = boundedLog(log);
    this.#clock = clock;
  }

  start(machines: () => Iterable<StormyMachine>): void {
    this.#timer ??= setInterval(() => {
      for (const machine of machines()) void this.check(machine);
    }, checkEveryMs).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** Resolves when the question or the kill that this look began is over. */
  async check(machine: StormyMachine): Promise<void> {
    try {
      if (machine.standsStill || machine.tasks() < crowdTasks) {
        const seen = this.#seen.get(machine);
        if (seen && !seen.striking) seen.load = seen.unanswered = undefined;
        return;
      }
      await this.#inspect(machine);
    } catch (err) {
      // The machine may have ended; exit-watch.ts reports that.
      this.#log.debug({ err, sandbox_id: machine.id }, "check of a machine for a fork bomb failed");
    }
  }

  async #inspect(machine: StormyMachine): Promise<void> {
    const seen = this.#seenOf(machine);
    if (seen.striking) return;
    const now = machine.load(this.#clock.monotonicMs());
    const before = seen.load;
    seen.load = now;
    if (!before || now.atMs < seen.notBeforeMs) return;
    const forecast = memoryForecast(before, now, machine.memory);
    if (forecast === "now" && guardIsLate(before, now, silentMs(seen, now)))
      return this.#strike(machine, seen, crowdedBy);
    const since = seen.unanswered;
    if (since && now.atMs - since.atMs >= unansweredMs)
      return this.#strike(machine, seen, crowdOf(machine.processLimit, now.tasks - since.tasks));
    const soon = forecast !== "enough" || now.atMs - (seen.asked?.atMs ?? -Infinity) >= askEveryMs;
    if (soon && isBusy(before, now)) return this.#ask(machine, seen, now);
  }

  async #ask(machine: StormyMachine, seen: Seen, now: Load): Promise<void> {
    if (seen.asking) return;
    seen.asking = true;
    seen.asked = now;
    const answered = await machine.healthy(answerMs);
    seen.asking = false;
    if (answered || machine.standsStill) seen.unanswered = undefined;
    else seen.unanswered ??= now;
  }

  async #strike(machine: StormyMachine, seen: Seen, crowd: number): Promise<void> {
    seen.striking = true;
    const began = this.#clock.monotonicMs();
    let restMs = inVainMs;
    try {
      const storm = await machine.endStorm(crowd);
      if (!storm) return;
      seen.unanswered = undefined;
      this.#log.warn(
        {
          sandbox_id: machine.id,
          processes: storm.pids.length,
          commands: storm.commands,
          ms: Math.round(this.#clock.monotonicMs() - began),
        },
        "a fork bomb: its processes were ended, all others go on",
      );
    } catch (err) {
      restMs = failedMs;
      this.#log.warn({ err, sandbox_id: machine.id }, "a machine could not be searched for a fork bomb");
    } finally {
      seen.striking = false;
      seen.load = undefined;
      seen.notBeforeMs = this.#clock.monotonicMs() + restMs;
    }
  }

  #seenOf(machine: StormyMachine): Seen {
    const known = this.#seen.get(machine);
    if (known) return known;
    const seen: Seen = { asking: false, striking: false, notBeforeMs: -Infinity };
    this.#seen.set(machine, seen);
    return seen;
  }
}

/** How long the agent has not answered. */
function silentMs({ asking, asked, unanswered }: Seen, now: Load): number {
  const since = unanswered ?? (asking ? asked : undefined);
  return since ? now.atMs - since.atMs : 0;
}
