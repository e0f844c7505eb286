// Runs a suspend or resume so that its machine never stays between two phases: an undo that fails is tried again, in the machine's turn,
// with waits that double. Past the last try whoever called decides what the machine is.
//
//   forward ──▶ done
//      └ a step fails ──▶ undo ──▶ undone: the step's error
//                          ├ fails ─▶ wait, again
//                          └ fails for a minute, or the machine is to be destroyed ──▶ NotUndoneError
import { runSaga, type SagaRecord, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { Parts } from "./parts.ts";

const FIRST_WAIT_MS = 250;
const LAST_WAIT_MS = 32_000;

/** The journal still has it: the next start tries once more. */
export class NotUndoneError extends ClocheError {}

/** `saga`: of the machine whose id it has. */
export async function runToAnEnd<Context>(
  parts: Parts<"machines" | "journal" | "clock" | "log">,
  saga: SagaRecord<Context>,
  steps: readonly SagaStep<Context>[],
): Promise<void> {
  try {
    await runSaga(saga, steps, parts.journal);
  } catch (error) {
    // What is undone is no longer among the steps begun.
    if (saga.begun.length === 0) throw error;
    await undoAgain(parts, saga, steps);
    // A retry knows no more than the words: of what did not go forward, not of the undo.
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
  for (let waitMs = FIRST_WAIT_MS; waitMs <= LAST_WAIT_MS; waitMs *= 2) {
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

/** SagaUndoError has the undo's error, then that of the step. */
function firstErrorOf(error: unknown): unknown {
  const cause = (error as { cause?: unknown }).cause;
  return cause instanceof AggregateError ? (cause.errors.at(-1) ?? error) : error;
}
