/**
 * Runs a suspend or resume so that its machine never stays between two phases. A failed undo is tried again in the machine's turn,
 * with waits that double. After the last try the caller decides the machine's phase.
 *
 *   forward ──▶ done
 *      └ a step fails ──▶ undo ──▶ undone: the step's error
 *                          ├ fails ─▶ wait, again
 *                          └ fails for a minute, or the machine is cut off ──▶ NotUndoneError
 */
import { runSaga, type SagaRecord, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { Parts } from "./parts.ts";

const firstWaitMs = 250;
const lastWaitMs = 32_000;

/** The journal keeps the saga: the next start tries to undo it once more. */
export class NotUndoneError extends ClocheError {}

/** `saga.id`: the machine's. Throws the error of the failed step once undone, else NotUndoneError. */
export async function runToAnEnd<Context>(
  parts: Parts<"machines" | "journal" | "clock" | "log">,
  saga: SagaRecord<Context>,
  steps: readonly SagaStep<Context>[],
): Promise<void> {
  try {
    await runSaga(saga, steps, parts.journal);
  } catch (error) {
    // An undone step is no longer in `begun`.
    if (saga.begun.length === 0) throw error;
    await undoAgain(parts, saga, steps);
    // A repeated undo throws only the text of the failure: throw the step's own error instead.
    throw firstErrorOf(error);
  }
}

async function undoAgain<Context>(
  { machines, journal, clock, log }: Parts<"machines" | "journal" | "clock" | "log">,
  saga: SagaRecord<Context>,
  steps: readonly SagaStep<Context>[],
): Promise<void> {
  const cut = machines.cutOf(saga.id);
  let last: unknown;
  for (let waitMs = firstWaitMs; waitMs <= lastWaitMs; waitMs *= 2) {
    const isWaited = await clock.sleep(waitMs, cut).then(
      () => true,
      () => false,
    );
    if (!isWaited) break;
    last = await runSaga(saga, steps, journal).catch((error: unknown) => error);
    if (saga.begun.length === 0) return;
    log.warn({ err: last, sandbox_id: saga.id, operation: saga.kind }, "could not be undone; trying again");
  }
  throw new NotUndoneError("internal", `${saga.kind} failed and could not be undone`, { cause: last });
}

/** The cause of a SagaUndoError holds the undo's error, then the step's. */
function firstErrorOf(error: unknown): unknown {
  const cause = (error as { cause?: unknown }).cause;
  return cause instanceof AggregateError ? (cause.errors.at(-1) ?? error) : error;
}
