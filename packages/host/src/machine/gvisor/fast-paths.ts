// Which sandboxes may have systrap's fast path (fast-path.ts): those that work and go on working. What is over sooner is
// faster without it: a command, what follows a fork or a create.
//
// Owns a timer, which runs while a sandbox is watched, and a file of each that is; looks at none that dozes.
import type { Log } from "@cloche/base";
import type { Cgroup, CpuClock } from "../cgroup.ts";

/** What is watched: a unit whose sentry is tame. */
export interface Fast {
  readonly cgroup: Pick<Cgroup, "openCpuClock">;
  allowFastPath(allowed: boolean): Promise<void>;
}

const TICK_MS = 25;
/** Of one processor. An idle sandbox has 4 percent of it at most; one that waits for every system call some 70. */
const WORKING_FROM = 0.5;
const ALLOWED_AFTER_MS = 75;
/** A share that is the mean of about so long, what was later counting for more: commands that come and go stay below it. */
const RESTING_BELOW = 0.4;
const MEAN_OVER_MS = 150;

interface Watched {
  readonly fast: Fast;
  readonly clock: CpuClock;
  readonly work: Sustained;
  cpuMs: number;
}

export class FastPaths {
  readonly #log: Log;
  readonly #watched = new Map<string, Watched>();
  #timer: NodeJS.Timeout | undefined;
  #lookedMs = 0;

  constructor(log: Log) {
    this.#log = log;
  }

  /** From here on, under that id; the same one may be watched already. */
  watch(id: string, fast: Fast): void {
    if (this.#watched.get(id)?.fast === fast) return;
    this.forget(id);
    let clock: CpuClock;
    try {
      clock = fast.cgroup.openCpuClock();
    } catch {
      return; // it has ended
    }
    this.#watched.set(id, { fast, clock, work: new Sustained(), cpuMs: clock.readMs() ?? 0 });
    if (this.#timer !== undefined) return;
    this.#lookedMs = performance.now();
    this.#timer = setInterval(() => this.#look(), TICK_MS);
    this.#timer.unref();
  }

  /** It dozes, has ended, or is somebody else's. */
  forget(id: string): void {
    this.#watched.get(id)?.clock.close();
    this.#watched.delete(id);
    if (this.#watched.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  close(): void {
    for (const id of this.#watched.keys()) this.forget(id);
  }

  #look(): void {
    const nowMs = performance.now();
    const passedMs = nowMs - this.#lookedMs;
    if (passedMs <= 0) return;
    this.#lookedMs = nowMs;
    for (const [id, watched] of this.#watched) {
      const cpuMs = watched.clock.readMs();
      if (cpuMs === undefined) {
        this.forget(id);
        continue;
      }
      const turned = watched.work.note((cpuMs - watched.cpuMs) / passedMs, passedMs);
      watched.cpuMs = cpuMs;
      if (turned === undefined) continue;
      watched.fast.allowFastPath(turned === "working").catch((error: unknown) => {
        this.#log.debug({ err: error, sandbox_id: id }, "the fast path of a sandbox was not told");
      });
    }
  }
}

/** Whether something works without a rest, or, once it did, still works on the whole. */
export class Sustained {
  #is: "working" | "resting" | undefined;
  /** Without a rest, while it is not known to be working. */
  #workedMs = 0;
  /** While it is, and of one processor at most: what worked on four rests as soon. */
  #meanShare = 0;

  /** `share` of a processor that it had during the last `passedMs`. What it is from now on, where that is news: at first it is. */
  note(share: number, passedMs: number): "working" | "resting" | undefined {
    this.#workedMs = share >= WORKING_FROM ? this.#workedMs + passedMs : 0;
    this.#meanShare += (Math.min(share, 1) - this.#meanShare) * (1 - Math.exp(-passedMs / MEAN_OVER_MS));
    const works =
      this.#is === "working" ? this.#meanShare >= RESTING_BELOW : this.#workedMs >= ALLOWED_AFTER_MS;
    const now = works ? "working" : "resting";
    if (now === this.#is) return undefined;
    this.#is = now;
    if (works) this.#meanShare = 1;
    return now;
  }
}
