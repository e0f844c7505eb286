/** Stops the parts that were started, the last first. Tries each and joins their errors. */
import { type Config, type Log, systemClock } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";

/** Parts that could not be stopped; the message names each with its cause. */
export class StopFailed extends AggregateError {
  override readonly name = "StopFailed";

  constructor(failures: readonly { part: string; error: unknown }[]) {
    const reasons = failures.map(({ part, error }) => `${part}: ${reasonOf(error)}`);
    super(
      failures.map(({ error }) => error),
      `stopping was not complete: ${reasons.join("; ")}`,
    );
  }
}

/** The message of an error with the messages of those that it joins. */
function reasonOf(error: unknown): string {
  if (error instanceof AggregateError && error.errors.length > 0)
    return error.errors.map(reasonOf).join("; ");
  if (error instanceof ClocheError && error.code === "internal" && error.cause !== undefined)
    return reasonOf(error.cause);
  return error instanceof Error ? error.message : String(error);
}

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

  /** Throws StopFailed. */
  async unwind(): Promise<void> {
    const failures: { part: string; error: unknown }[] = [];
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) {
      const { part } = step;
      const beganMs = systemClock.monotonicMs();
      const sinceMs = (): number => Math.round(systemClock.monotonicMs() - beganMs);
      try {
        await step.run();
        this.#log.info({ part, ms: sinceMs() }, "stopped");
      } catch (error) {
        failures.push({ part, error });
        this.#log.error({ part, ms: sinceMs(), err: error }, "could not be stopped");
      }
    }
    if (failures.length > 0) throw new StopFailed(failures);
  }
}
