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
const WORKING_SHARE = 0.2;
const ALLOWED_AFTER_MS = 75;
const FORBIDDEN_AFTER_MS = 200;

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

/** Whether something works for a while, or rests for a while. */
export class Sustained {
  #is: "working" | "resting" | undefined;
  #last: "working" | "resting" | undefined;
  #otherwiseMs = 0;

  /** `share` of a processor that it had during the last `passedMs`. What it is from now on, where that is news. */
  note(share: number, passedMs: number): "working" | "resting" | undefined {
    const now = share >= WORKING_SHARE ? "working" : "resting";
    if (now === this.#is) {
      this.#otherwiseMs = 0;
      return undefined;
    }
    // Both, as long as it is neither: one begins anew where the other comes between.
    this.#otherwiseMs = now === this.#last ? this.#otherwiseMs + passedMs : passedMs;
    this.#last = now;
    if (this.#otherwiseMs < (now === "working" ? ALLOWED_AFTER_MS : FORBIDDEN_AFTER_MS)) return undefined;
    this.#is = now;
    this.#otherwiseMs = 0;
    return now;
  }
}
