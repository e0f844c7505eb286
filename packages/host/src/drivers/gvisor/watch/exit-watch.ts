/**
 * Reports that a machine's unit has ended, by itself or killed. Its keeper writes a file at once, which is watched. Its process is also
 * checked every two seconds, because the keeper may be killed first and the kernel may refuse more file watchers. A machine that hangs
 * is ended, and reported like any other end.
 *
 * Owns the watch of each machine, from `watch` until its end or `unwatch`.
 */
import { type Log, systemClock } from "@cloche/base";
import { type FSWatcher, watch } from "node:fs";
import { type HealthOptions, HealthWatch } from "../../health-watch.ts";
import { keepStacks } from "./hang-reports.ts";
import type { Unit } from "../unit.ts";
import { CollectWatch } from "./collect-watch.ts";
import { DiskWatch, hasRoom } from "../../disk-watch.ts";
import { StormWatch } from "./storm-watch.ts";
import { WatchedUnit } from "./watched-unit.ts";

export interface ExitWatchOptions {
  /** Directory for reports of machines that hang (hang-reports.ts). */
  hangsDir: string;
  /** Directory on the pool, where disks are. */
  poolDir: string;
  /** Default: a machine that does not answer for a minute is ended. */
  health?: HealthOptions;
  log: Log;
}

const checkEveryMs = 2_000;
const defaultHealth: HealthOptions = { intervalMs: 10_000, hungAfterMs: 60_000 };

interface Watched {
  machine: WatchedUnit;
  keeper: FSWatcher | undefined;
}

export class ExitWatch {
  readonly #watched = new Map<string, Watched>();
  readonly #listeners: ((id: string, reason: string) => void)[] = [];
  readonly #options: ExitWatchOptions;
  readonly #health: HealthWatch;
  readonly #storms: StormWatch;
  readonly #collects: CollectWatch;
  readonly #disks: DiskWatch;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: ExitWatchOptions) {
    this.#options = options;
    this.#health = new HealthWatch(options.health ?? defaultHealth, systemClock, options.log);
    this.#storms = new StormWatch(options.log);
    this.#collects = new CollectWatch(options.log);
    this.#disks = new DiskWatch(options.log, () => hasRoom(options.poolDir));
  }

  /** From now on, looks for machines that hang or cannot write, for fork bombs, and for sentries that hold unused memory. */
  start(): void {
    const machines = (): WatchedUnit[] => [...this.#watched.values()].map(({ machine }) => machine);
    this.#health.start(machines);
    this.#storms.start(machines);
    this.#collects.start(machines);
    this.#disks.start(machines);
  }

  onExit(listener: (id: string, reason: string) => void): void {
    this.#listeners.push(listener);
  }

  watch(unit: Unit, id: string): void {
    this.unwatch(id);
    const machine = new WatchedUnit(unit, id, {
      keepStacks: () => keepStacks(this.#options, unit, id),
      // Several watches may notice; the end of a machine is reported once.
      ended: (reason) => this.#watched.get(id)?.machine === machine && this.#notify(id, reason),
    });
    const check = (): void => void this.#check(machine);
    let keeper: FSWatcher | undefined;
    try {
      keeper = watch(unit.directory, { persistent: false }, (_event, name) => name === "exit" && check());
      keeper.on("error", () => undefined);
    } catch {
      // The host has too many file watchers: only the process is checked.
    }
    this.#watched.set(id, { machine, keeper });
    this.#timer ??= setInterval(() => this.#checkAll(), checkEveryMs).unref();
    // The unit may have ended before the watch began.
    check();
  }

  unwatch(id: string): void {
    this.#watched.get(id)?.keeper?.close();
    this.#watched.delete(id);
  }

  close(): void {
    this.#health.stop();
    this.#storms.stop();
    this.#collects.stop();
    this.#disks.stop();
    clearInterval(this.#timer);
    this.#timer = undefined;
    for (const id of this.#watched.keys()) this.unwatch(id);
  }

  #checkAll(): void {
    for (const { machine } of this.#watched.values()) void this.#check(machine);
  }

  async #check(machine: WatchedUnit): Promise<void> {
    const reason = await machine.endReason();
    if (reason !== undefined && this.#watched.get(machine.id)?.machine === machine)
      this.#notify(machine.id, reason);
  }

  #notify(id: string, reason: string): void {
    this.unwatch(id);
    for (const listener of this.#listeners) listener(id, reason);
  }
}
