/** Stops the parts that were started, the last first. Tries each and joins their errors. A part that takes long tells what it waits for. */
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

/** When a part that is being stopped tells what it waits for: after this time, and each time it took twice as long. */
const reportAfterMs = 1_000;

export const answersUnderWay = (): string => "answers under way";

export type WaitsFor = () => string | Promise<string>;

interface Step {
  part: string;
  run(): Promise<unknown>;
  waitsFor: WaitsFor | undefined;
}

export class Stops {
  /** True: running machines are suspended and nothing is left. False: machines run on with disks and network, for the next start. */
  suspend = false;
  readonly #steps: Step[] = [];
  readonly #log: Log;
  #waiting: string | undefined;

  constructor(log: Log) {
    this.#log = log;
  }

  /** The part that takes long to stop, and what it waits for; undefined: none does. */
  get waiting(): string | undefined {
    return this.#waiting;
  }

  /** `run` must stop `part`, which was started. `waitsFor`: what the stop waits for at this moment, in words. */
  add(part: string, run: () => Promise<unknown>, waitsFor?: WaitsFor): void {
    this.#steps.push({ part, run, waitsFor });
  }

  /** Runs `start`. If it fails, the parts that were started are stopped. */
  async begin<Answer>(start: () => Promise<Answer>): Promise<Answer> {
    try {
      return await start();
    } catch (error) {
      await this.unwind().catch((problem: unknown) =>
        this.#log.error({ err: problem }, "undoing a failed start failed"),
      );
      throw error;
    }
  }

  /** Throws StopFailed. */
  async unwind(): Promise<void> {
    const failures: { part: string; error: unknown }[] = [];
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) {
      const { part } = step;
      const beganMs = systemClock.monotonicMs();
      const sinceMs = (): number => Math.round(systemClock.monotonicMs() - beganMs);
      const endReports = this.#report(step, sinceMs);
      try {
        await step.run();
        this.#log.info({ part, ms: sinceMs() }, "stopped");
      } catch (error) {
        failures.push({ part, error });
        this.#log.error({ part, ms: sinceMs(), err: error }, "could not be stopped");
      } finally {
        endReports();
      }
    }
    if (failures.length > 0) throw new StopFailed(failures);
  }

  /** Tells what the step waits for until the returned function is called. */
  #report({ part, waitsFor }: Step, sinceMs: () => number): () => void {
    let isOver = false;
    let timer: NodeJS.Timeout;
    const report = async (): Promise<void> => {
      const what = await Promise.resolve()
        .then(() => waitsFor?.() ?? "")
        .catch((error: unknown) => (error instanceof Error ? error.message : String(error)));
      if (isOver) return;
      const ms = sinceMs();
      this.#waiting = `${part}${what === "" ? "" : `: waits for ${what}`} (${Math.round(ms / 1_000)} s)`;
      this.#log.warn({ part, ms, waits_for: what }, "is not stopped yet");
      timer = setTimeout(() => void report(), ms);
    };
    timer = setTimeout(() => void report(), reportAfterMs);
    return () => {
      isOver = true;
      clearTimeout(timer);
      this.#waiting = undefined;
    };
  }
}
