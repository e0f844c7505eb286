import { step as traceStep } from "./request-context.ts";

/**
 * A persisted sequence of steps. Every step can be repeated: after a crash the saga continues with the first step that
 * the journal does not name as done. When a step fails, all begun steps are undone, newest first.
 *
 *   pending ──do──▶ done ──next──▶ … ──▶ complete (journal removed)
 *      │ throws
 *      ▼
 *   undoing ──undo each begun step──▶ undone (journal removed, the error is thrown)
 */
export interface SagaStep<Context> {
  readonly name: string;
  /** Must be repeatable: twice has the same effect as once. May write results into the context, which is persisted. */
  do(context: Context): Promise<void>;
  /** Must be repeatable, and succeed when `do` was interrupted halfway. */
  undo?(context: Context): Promise<void>;
}

export interface SagaRecord<Context> {
  id: string;
  kind: string;
  /** Names of the begun steps, oldest first; the last may be incomplete. */
  begun: string[];
  direction: "forward" | "back";
  /** Public message of the failure that turned the saga back. */
  failure?: string;
  context: Context;
}

/** Stores sagas. `save` must be durable when it resolves. */
export interface SagaJournal<Context> {
  save(record: SagaRecord<Context>): Promise<void>;
  remove(id: string): Promise<void>;
}

export class SagaUndoError extends Error {
  override readonly name = "SagaUndoError";
}

/**
 * Runs or continues a saga to its end. Throws the step's error after undoing, or SagaUndoError when undoing failed (the
 * journal stays).
 */
export async function runSaga<Context>(
  record: SagaRecord<Context>,
  steps: readonly SagaStep<Context>[],
  journal: SagaJournal<Context>,
): Promise<Context> {
  if (record.direction === "forward") {
    try {
      await goForward(record, steps, journal);
      await journal.remove(record.id);
      return record.context;
    } catch (error) {
      record.direction = "back";
      record.failure = error instanceof Error ? error.message : String(error);
      await journal.save(record);
      await goBack(record, steps, journal, error);
      throw error;
    }
  }
  await goBack(record, steps, journal, undefined);
  throw new Error(record.failure ?? "undone after a restart");
}

async function goForward<Context>(
  record: SagaRecord<Context>,
  steps: readonly SagaStep<Context>[],
  journal: SagaJournal<Context>,
): Promise<void> {
  // The last begun step may have been interrupted, so it is repeated. The steps before it are done.
  const done = new Set(record.begun.slice(0, -1));
  for (const step of steps) {
    if (done.has(step.name)) continue;
    if (!record.begun.includes(step.name)) record.begun.push(step.name);
    await journal.save(record);
    await traceStep(step.name, () => step.do(record.context));
  }
}

async function goBack<Context>(
  record: SagaRecord<Context>,
  steps: readonly SagaStep<Context>[],
  journal: SagaJournal<Context>,
  original: unknown,
): Promise<void> {
  for (let name = record.begun.at(-1); name !== undefined; name = record.begun.at(-1)) {
    const step = steps.find((candidate) => candidate.name === name);
    try {
      await step?.undo?.(record.context);
    } catch (error) {
      throw new SagaUndoError(`undoing step ${name} of ${record.kind} ${record.id} failed`, {
        cause: new AggregateError([error, original].filter((e) => e !== undefined)),
      });
    }
    record.begun.pop();
    await journal.save(record);
  }
  await journal.remove(record.id);
}
