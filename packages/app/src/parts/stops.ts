/** How what was started is stopped: the last first, each tried, what failed joined. */
import { type Log, systemClock } from "@cloche/base";

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
