/**
 * Set-up consists of named steps, each repeatable. A failure names the step, its cause and its repair; the same command run again
 * continues there.
 */

/** Called when a step begins and, with a detail, while it goes on. */
export type Progress = (step: string, detail?: string) => void;

/** Meant for the operator who runs set-up (never sent to API clients), so it may name paths and commands. */
export class SetupError extends Error {
  override readonly name = "SetupError";
  readonly step: string;
  readonly repair: string;

  constructor(step: string, why: string, repair: string, options?: { cause?: unknown }) {
    super(`${step} failed: ${why}\n  repair: ${repair}`, options);
    this.step = step;
    this.repair = repair;
  }
}

/** Runs `body` as the step `name`; whatever it throws becomes a SetupError that carries `repair`. */
export async function inStep<T>(
  progress: Progress,
  name: string,
  repair: string,
  body: (detail: (text: string) => void) => Promise<T>,
): Promise<T> {
  progress(name);
  try {
    return await body((text) => progress(name, text));
  } catch (error) {
    if (error instanceof SetupError) throw error;
    throw new SetupError(name, error instanceof Error ? error.message : String(error), repair, {
      cause: error,
    });
  }
}
