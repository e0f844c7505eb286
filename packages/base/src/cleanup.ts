/**
 * Undoes partial work: push an undo right after each acquisition; `release` when all succeeded, `unwind` when not.
 * `unwind` runs every undo, newest first, and joins what failed.
 */
export class CleanupStack {
  #undos: { name: string; undo: () => Promise<void> | void }[] = [];

  push(name: string, undo: () => Promise<void> | void): void {
    this.#undos.push({ name, undo });
  }

  /** Success: nothing is undone any more. */
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

  /** Runs `body`; unwinds when it throws (the body's error wins, undo failures become its sibling), else releases. */
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
