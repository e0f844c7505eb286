/**
 * Undoes partial work: push an undo right after each acquisition; call `release` when all succeeded, `unwind` when not.
 * `unwind` runs every undo, newest first, and joins the failures into one error.
 */
export class CleanupStack {
  #undos: { name: string; undo: () => Promise<void> | void }[] = [];

  push(name: string, undo: () => Promise<void> | void): void {
    this.#undos.push({ name, undo });
  }

  /** Call it on success: nothing will be undone. */
  release(): void {
    this.#undos = [];
  }

  async unwind(): Promise<void> {
    const failures: Error[] = [];
    for (let entry = this.#undos.pop(); entry !== undefined; entry = this.#undos.pop()) {
      try {
        await entry.undo();
      } catch (error) {
        failures.push(new Error(`undoing ${entry.name} failed`, { cause: error }));
      }
    }
    if (failures.length > 0) throw new AggregateError(failures, failures.map((f) => f.message).join("; "));
  }

  /** Runs `body`; unwinds when it throws, else releases. Throws the body's error, joined with failures of the undos. */
  static async guard<T>(body: (stack: CleanupStack) => Promise<T>): Promise<T> {
    const stack = new CleanupStack();
    try {
      const value = await body(stack);
      stack.release();
      return value;
    } catch (error) {
      try {
        await stack.unwind();
      } catch (undoError) {
        throw new AggregateError([error, undoError], error instanceof Error ? error.message : String(error), {
          cause: error,
        });
      }
      throw error;
    }
  }
}
