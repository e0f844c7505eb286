import { StdinStreams } from "./stdin-streams.ts";

/**
 * The running execs. By this list the edge ends an exec whose client went away (by the edge's id), and the host sees that the sandbox
 * is busy. In memory only: an exec does not outlive its agent.
 */
export class RunningExecs {
  readonly stdins = new StdinStreams();
  readonly #byId = new Map<string, AbortController>();
  #count = 0;

  get count(): number {
    return this.#count;
  }

  /** Counts `work` as running. `abort` with the same `id` aborts its signal (undefined: cannot be aborted). */
  async track<T>(id: string | undefined, work: (aborted: AbortSignal) => Promise<T>): Promise<T> {
    const controller = new AbortController();
    if (id !== undefined) this.#byId.set(id, controller);
    this.#count += 1;
    try {
      return await work(controller.signal);
    } finally {
      this.#count -= 1;
      if (id !== undefined && this.#byId.get(id) === controller) this.#byId.delete(id);
    }
  }

  /** Ends an exec with its whole tree; false if no exec with this id runs. */
  abort(id: string): boolean {
    const controller = this.#byId.get(id);
    controller?.abort();
    return controller !== undefined;
  }
}
