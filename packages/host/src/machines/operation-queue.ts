/**
 * The turns of each machine: one operation of a machine at a time, those of different machines side by side. Measures how long an
 * operation took, the wait for its turn included.
 */
import {
  type Clock,
  type Histogram,
  type Log,
  logIds,
  type Metrics,
  SerialQueue,
  step,
  traced,
} from "@cloche/base";

export interface OperationQueueParts {
  clock: Clock;
  log: Log;
  metrics: Metrics;
  /** Logs the steps of each operation with their times. */
  traceOperations: boolean;
}

export class OperationQueue extends SerialQueue {
  readonly #parts: OperationQueueParts;
  readonly #timings: Histogram;

  constructor(parts: OperationQueueParts) {
    super();
    this.#parts = parts;
    this.#timings = parts.metrics.histogram(
      "cloche_machine_operation_seconds",
      "Time that the host took for an operation of a machine, waiting in its queue included.",
    );
  }

  /** Runs an operation in the machine's turn and notes how long it took, by operation and result. */
  async timed<T>(operation: string, id: string, body: () => Promise<T>): Promise<T> {
    const { clock, log, traceOperations } = this.#parts;
    const beganMs = clock.monotonicMs();
    let result = "failed";
    const inTurn = async (): Promise<T> => {
      const turn = Promise.withResolvers<void>();
      const queued = step("queue", () => turn.promise);
      const answer = await this.run(id, async () => {
        turn.resolve();
        await queued;
        return await body();
      });
      result = "ok";
      return answer;
    };
    try {
      if (!traceOperations) return await inTurn();
      return await traced(inTurn, (steps) => {
        const ms = Math.round((clock.monotonicMs() - beganMs) * 10) / 10;
        log.info({ operation, sandbox_id: id, ...logIds(), result, ms, steps }, "operation trace");
      });
    } finally {
      this.#timings.observe({ operation, result }, (clock.monotonicMs() - beganMs) / 1_000);
    }
  }
}
