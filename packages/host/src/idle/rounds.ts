/** Repeats a look until stopped. Looks never overlap. */
import type { Clock } from "@cloche/base";

export class Rounds {
  readonly #clock: Clock;
  readonly #everyMs: number;
  readonly #task: () => Promise<void>;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;

  /** `everyMs`: from the end of one look to the start of the next. `look` handles its own errors. */
  constructor(clock: Clock, everyMs: number, task: () => Promise<void>) {
    this.#clock = clock;
    this.#everyMs = everyMs;
    this.#task = task;
  }

  get stopped(): boolean {
    return this.#stop.signal.aborted;
  }

  start(): void {
    this.#running = this.#run();
  }

  /** Waits for the look under way. */
  async stop(): Promise<void> {
    this.#stop.abort(new Error("the host is stopping"));
    await this.#running;
  }

  async #run(): Promise<void> {
    while (!this.stopped) {
      await this.#clock.sleep(this.#everyMs, this.#stop.signal).catch(() => undefined);
      if (!this.stopped) await this.#task();
    }
  }
}
