import type { SerialQueue } from "@cloche/base";

/** Sandboxes that are named; of more only the number. */
const namedMax = 5;

/** The steps of a host's stop, and what the step under way waits for. */
export class Stopping {
  readonly #queue: Pick<SerialQueue, "keys">;
  #what = "";

  /** `queue`: of the operations on machines, by sandbox. */
  constructor(queue: Pick<SerialQueue, "keys">) {
    this.#queue = queue;
  }

  async step(what: string, run: () => unknown): Promise<void> {
    this.#what = what;
    await run();
  }

  waitsFor(): string {
    const sandboxes = this.#queue.keys();
    if (sandboxes.length === 0) return this.#what;
    const more = sandboxes.length > namedMax ? [`${sandboxes.length - namedMax} more`] : [];
    return `${this.#what} of ${[...sandboxes.slice(0, namedMax), ...more].join(", ")}`;
  }
}
