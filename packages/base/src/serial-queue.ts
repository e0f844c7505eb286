/** Runs tasks of one key one after another, and tasks of different keys in parallel. Keeps nothing for idle keys. */
export class SerialQueue {
  readonly #tails = new Map<string, Promise<unknown>>();

  run<T>(key: string, task: () => Promise<T>): Promise<T> {
    const before = this.#tails.get(key) ?? Promise.resolve();
    const result = before.then(task, task);
    const tail = result.then(
      () => undefined,
      () => undefined,
    );
    this.#tails.set(key, tail);
    void tail.then(() => {
      if (this.#tails.get(key) === tail) this.#tails.delete(key);
    });
    return result;
  }

  /** Whether a task of `key` runs or waits. */
  isBusy(key: string): boolean {
    return this.#tails.has(key);
  }

  /** Keys of which a task runs or waits. */
  keys(): string[] {
    return [...this.#tails.keys()];
  }

  get busyKeys(): number {
    return this.#tails.size;
  }

  /** Resolves when nothing runs or waits any more. */
  async drain(): Promise<void> {
    while (this.#tails.size > 0) await Promise.all(this.#tails.values());
  }
}
