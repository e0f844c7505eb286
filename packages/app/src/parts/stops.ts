/** Stops the parts that were started, the last first. Tries each and joins their errors. */
import { type Config, type Log, systemClock } from "@cloche/base";

/** In a cluster, requests on a connection are answered for this time after its last answer while a part stops. */
const keptMsMax = 2_000;

/** Never longer than the drain time of the settings. */
export const keptMs = ({ drainSeconds }: Config): number => Math.min(keptMsMax, drainSeconds * 1_000);

export class Stops {
  /** True: running machines are suspended and nothing is left. False: machines run on with disks and network, for the next start. */
  suspend = false;
  readonly #steps: { part: string; run(): Promise<unknown> }[] = [];
  readonly #log: Log;

  constructor(log: Log) {
    this.#log = log;
  }

  /** `run` must stop `part`, which was started. */
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
