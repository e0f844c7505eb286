// A look that is taken again and again, one after the other, until it is stopped.
import type { Clock } from "@cloche/base";

export class Rounds {
  readonly #clock: Clock;
  readonly #everyMs: number;
  readonly #look: () => Promise<void>;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;

  /** `everyMs` lies between the end of a look and the next. `look` handles its own errors. */
  constructor(clock: Clock, everyMs: number, look: () => Promise<void>) {
    this.#clock = clock;
    this.#everyMs = everyMs;
    this.#look = look;
  }

  get stopped(): boolean {
    return this.#stop.signal.aborted;
  }

  start(): void {
    this.#running = this.#run();
  }

  /** Waits for the look that is being taken. */
  async stop(): Promise<void> {
    this.#stop.abort(new Error("the host is stopping"));
    await this.#running;
  }

  async #run(): Promise<void> {
    while (!this.stopped) {
      await this.#clock.sleep(this.#everyMs, this.#stop.signal).catch(() => undefined);
      if (!this.stopped) await this.#look();
    }
  }
}
