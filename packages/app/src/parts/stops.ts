/** How what was started is stopped: the last first, each tried, what failed joined. */
import { type Config, type Log, systemClock } from "@cloche/base";

/** A client of a cluster that has just been answered on its connection is answered there for so long, where a whole service stops at once. */
const keptMsMax = 2_000;

/** As the settings allow. */
export const keptMs = ({ drainSeconds }: Config): number => Math.min(keptMsMax, drainSeconds * 1_000);

export class Stops {
  /** Running machines are suspended and nothing stays; without, machines go on for the next start, with disks and network. */
  suspend = false;
  readonly #steps: { part: string; run(): Promise<unknown> }[] = [];
  readonly #log: Log;

  constructor(log: Log) {
    this.#log = log;
  }

  /** `run` stops `part`, which has been started. */
  add(part: string, run: () => Promise<unknown>): void {
    this.#steps.push({ part, run });
  }

  async unwind(): Promise<void> {
    const failures: unknown[] = [];
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) {
      const beganMs = systemClock.monotonicMs();
      await step.run().catch((error: unknown) => failures.push(error));
      this.#log.info({ part: step.part, ms: Math.round(systemClock.monotonicMs() - beganMs) }, "stopped");
    }
    if (failures.length > 0) throw new AggregateError(failures, "stopping was not complete");
  }
}
