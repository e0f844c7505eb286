// A unit as the watches see it: whether it lives, whether its agent answers, and how one that hangs is ended.
import type { WatchedMachine } from "../health-watch.ts";
import { agentAnswers } from "../qemu/agent-answer.ts";
import type { Unit } from "./unit.ts";

export class WatchedUnit implements WatchedMachine {
  readonly id: string;
  readonly #unit: Unit;
  readonly #hooks: { keepStacks: () => Promise<void>; ended: (reason: string) => void };

  constructor(
    unit: Unit,
    id: string,
    hooks: { keepStacks: () => Promise<void>; ended: (reason: string) => void },
  ) {
    this.#unit = unit;
    this.id = id;
    this.#hooks = hooks;
  }

  get standsStill(): boolean {
    return this.#unit.standsStill;
  }

  healthy(timeoutMs: number): Promise<boolean> {
    const { agentHost, agentPort } = this.#unit.agent;
    return agentAnswers(agentHost, agentPort, timeoutMs);
  }

  /** Why it ended; undefined: it lives. */
  async endReason(): Promise<string | undefined> {
    return (await this.#unit.isAlive()) ? undefined : this.#unit.exitReason();
  }

  /** Tells of its end itself: a keeper that lives would tell of a signal. */
  async endAsHung(): Promise<void> {
    await this.#hooks.keepStacks();
    // It may have come back meanwhile.
    if (this.standsStill || (await this.healthy(LAST_CHECK_MS))) return;
    this.#hooks.ended("the machine stopped answering");
    await this.#unit.cgroup.kill();
  }
}

const LAST_CHECK_MS = 1_000;
