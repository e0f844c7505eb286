/**
 * A unit as the watches see it: checks that it lives and that its agent answers, ends a hanging unit, and kills a fork bomb in it.
 */
import type { WatchedMachine } from "../../health-watch.ts";
import { agentAnswers } from "../../../agent-calls/agent-answer.ts";
import { type Load, type Memory, type Storm, stormOf } from "../storm.ts";
import type { CollectedMachine } from "./collect-watch.ts";
import { endedForDisk, type MachineWithDisk } from "../../disk-watch.ts";
import type { StormyMachine } from "./storm-watch.ts";
import type { Unit } from "../unit.ts";
import { usedUpDescriptors } from "../descriptors.ts";
import { processLimit, withHeadroom } from "../unit-limits.ts";

export class WatchedUnit implements WatchedMachine, StormyMachine, CollectedMachine, MachineWithDisk {
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

  get mountPoint(): string {
    return this.#unit.mountPoint;
  }

  async healthy(timeoutMs: number): Promise<boolean> {
    const { agentHost, agentPort } = this.#unit.agent;
    return (await agentAnswers(agentHost, agentPort, timeoutMs)) && !(await this.#lacksDescriptors());
  }

  async #lacksDescriptors(): Promise<boolean> {
    return (await usedUpDescriptors(this.#unit.record.sandbox?.pid)) !== undefined;
  }

  get memory(): Memory {
    const { limits } = this.#unit.record;
    return { promised: limits.memoryBytes, limit: withHeadroom(limits).memoryBytes };
  }

  get processLimit(): number {
    return processLimit(this.#unit.record.limits);
  }

  tasks(): number {
    return this.#unit.cgroup.tasks();
  }

  load(atMs: number): Load {
    const { cpuMs, memoryBytes } = this.#unit.cgroup.cpuAndMemory();
    return { atMs, tasks: this.tasks(), cpuMs, memoryBytes };
  }

  chargedBytes(): number {
    return this.#unit.cgroup.chargedBytes();
  }

  sizes(): { memoryBytes: number; privateBytes: number } {
    return this.#unit.cgroup.cpuAndMemory();
  }

  limitMemory(bytes: number): Promise<void> {
    return this.#unit.cgroup.limitMemory(bytes);
  }

  collect(): Promise<void> {
    return this.#unit.collect();
  }

  endStorm(crowd: number): Promise<Storm | undefined> {
    return this.#unit.whilePaused(async (sentry) => {
      const storm = stormOf(await sentry.processes(), crowd);
      for (const pgid of storm?.groups ?? []) await sentry.killGroup(pgid);
      for (const pid of storm?.alone ?? []) await sentry.kill(pid);
      return storm;
    });
  }

  /** Why the unit ended; undefined: it lives. */
  async endReason(): Promise<string | undefined> {
    return (await this.#unit.isAlive()) ? undefined : this.#unit.exitReason();
  }

  /** Ends a hanging unit. */
  async endAsHung(): Promise<void> {
    await this.#hooks.keepStacks();
    // It may answer again by now.
    if (this.standsStill || (await this.healthy(lastCheckMs))) return;
    const why = (await this.#lacksDescriptors())
      ? "its programs had as many files open as the host allows"
      : "the machine stopped answering";
    await this.#end(why);
  }

  async endForDisk(): Promise<void> {
    await this.#end(endedForDisk);
  }

  /** Reports the reason first: the keeper would report a signal. */
  async #end(reason: string): Promise<void> {
    this.#hooks.ended(reason);
    await this.#unit.cgroup.kill();
  }
}

const lastCheckMs = 1_000;
