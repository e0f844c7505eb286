// Finds fork bombs and ends them from outside, while the machine stands still: a machine that is paused cannot fork, and inside nobody
// else gets a turn (the agent would need seconds to read /proc). One timer for all machines of a driver; which processes are the bomb
// storm.ts decides.
//
//   calm ──many tasks, busy──▶ asked ──the agent answers──▶ asked again a second later
//     ▲                          ├──none for UNANSWERED_MS──▶ struck: paused, the bomb is killed, goes on
//     │                          └──memory runs out──────▶ struck
//     └──few tasks, or it stands still because of us
import { type Clock, type Log, systemClock } from "@cloche/base";
import {
  CROWD,
  CROWD_TASKS,
  crowdOf,
  isBusy,
  type Load,
  type Memory,
  memoryRunsOut,
  type Storm,
} from "./storm.ts";

/** A machine as the watch sees it; the same object for as long as it lives. */
export interface StormyMachine {
  readonly id: string;
  /** Because of us: frozen, or in the middle of a snapshot. */
  readonly standsStill: boolean;
  readonly memory: Memory;
  /** How many processes may run in it. */
  readonly processLimit: number;
  /** Host tasks: cheap, asked of every machine at every look. */
  tasks(): number;
  load(atMs: number): Load;
  /** Whether its agent answers, within `timeoutMs`. */
  healthy(timeoutMs: number): Promise<boolean>;
  /** Kills the program that has by far the most processes, where those are more than `crowd`. */
  endStorm(crowd: number): Promise<Storm | undefined>;
}

const LOOK_EVERY_MS = 200;
const ANSWER_MS = 1_000;
/** A storm leaves the agent no turn at all; a busy machine's agent answers late. */
const UNANSWERED_MS = 2_000;
/** Once it was paused in vain, it runs for so long at least. */
const IN_VAIN_MS = 2_000;

interface Seen {
  load: Load | undefined;
  asked: boolean;
  askedAtMs: number;
  /** What it was like when its agent was first asked in vain. */
  unanswered: Load | undefined;
  striking: boolean;
  notBeforeMs: number;
}

export class StormWatch {
  readonly #log: Log;
  readonly #clock: Clock;
  #seen = new WeakMap<StormyMachine, Seen>();
  #timer: NodeJS.Timeout | undefined;

  constructor(log: Log, clock: Clock = systemClock) {
    this.#log = log;
    this.#clock = clock;
  }

  start(machines: () => Iterable<StormyMachine>): void {
    this.#timer ??= setInterval(() => {
      for (const machine of machines()) void this.look(machine);
    }, LOOK_EVERY_MS).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** Resolves when what this look began is over: a question, or the end of a bomb. */
  async look(machine: StormyMachine): Promise<void> {
    try {
      if (machine.standsStill || machine.tasks() < CROWD_TASKS) {
        if (!this.#seen.get(machine)?.striking) this.#seen.delete(machine);
        return;
      }
      await this.#lookClosely(machine);
    } catch (err) {
      // It may have ended meanwhile, which its exit tells.
      this.#log.debug({ err, sandbox_id: machine.id }, "a machine could not be looked at");
    }
  }

  async #lookClosely(machine: StormyMachine): Promise<void> {
    const seen = this.#seenOf(machine);
    if (seen.striking) return;
    const now = machine.load(this.#clock.monotonicMs());
    const before = seen.load;
    seen.load = now;
    if (!before || now.atMs < seen.notBeforeMs) return;
    if (memoryRunsOut(before, now, machine.memory)) return this.#strike(machine, seen, CROWD);
    const since = seen.unanswered;
    if (since && now.atMs - since.atMs >= UNANSWERED_MS)
      return this.#strike(machine, seen, crowdOf(machine.processLimit, now.tasks - since.tasks));
    if (isBusy(before, now)) return this.#ask(machine, seen, now);
  }

  async #ask(machine: StormyMachine, seen: Seen, now: Load): Promise<void> {
    if (seen.asked || now.atMs - seen.askedAtMs < ANSWER_MS) return;
    seen.asked = true;
    seen.askedAtMs = now.atMs;
    const answered = await machine.healthy(ANSWER_MS);
    seen.asked = false;
    if (answered || machine.standsStill) seen.unanswered = undefined;
    else seen.unanswered ??= now;
  }

  async #strike(machine: StormyMachine, seen: Seen, crowd: number): Promise<void> {
    seen.striking = true;
    try {
      const storm = await machine.endStorm(crowd);
      if (storm)
        this.#log.warn(
          { sandbox_id: machine.id, processes: storm.pids.length, commands: storm.commands },
          "a fork bomb: its processes were ended, all others go on",
        );
    } finally {
      this.#seen.delete(machine);
      this.#seenOf(machine).notBeforeMs = this.#clock.monotonicMs() + IN_VAIN_MS;
    }
  }

  #seenOf(machine: StormyMachine): Seen {
    const known = this.#seen.get(machine);
    if (known) return known;
    const seen: Seen = {
      load: undefined,
      asked: false,
      askedAtMs: Number.NEGATIVE_INFINITY,
      unanswered: undefined,
      striking: false,
      notBeforeMs: Number.NEGATIVE_INFINITY,
    };
    this.#seen.set(machine, seen);
    return seen;
  }
}
