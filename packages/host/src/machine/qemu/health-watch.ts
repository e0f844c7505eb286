// Finds machines that hang: QEMU stopped or stuck, or a guest whose agent answers no more. One timer for all machines of a
// driver; a machine that fails every check for the whole of `hungAfterMs` is ended, which its `ended` then tells.
//
//   answers ──a check fails──▶ suspect since t ──a check succeeds──▶ answers
//                                   └──now − t ≥ hungAfterMs──▶ ended as hung
import type { Clock, Log } from "@cloche/base";
import type { Vm } from "./vm.ts";

export interface HealthOptions {
  readonly intervalMs: number;
  /** Long enough for a host under heavy load: ending a machine that only is slow loses its memory. */
  readonly hungAfterMs: number;
}

export class HealthWatch {
  readonly #options: HealthOptions;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #suspects = new Map<Vm, number>();
  #timer: NodeJS.Timeout | undefined;
  #running = false;

  constructor(options: HealthOptions, clock: Clock, log: Log) {
    this.#options = options;
    this.#clock = clock;
    this.#log = log;
  }

  start(machines: () => Iterable<Vm>): void {
    this.#timer ??= setInterval(() => void this.check(machines()), this.#options.intervalMs).unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#suspects.clear();
  }

  /** One round. Rounds do not overlap. */
  async check(machines: Iterable<Vm>): Promise<void> {
    if (this.#running) return;
    this.#running = true;
    try {
      await Promise.all([...machines].map((vm) => this.#checkOne(vm)));
    } finally {
      this.#running = false;
    }
  }

  async #checkOne(vm: Vm): Promise<void> {
    const standsStill = () => vm.pausedByUs;
    if (standsStill() || (await vm.healthy(this.#options.intervalMs)) || standsStill()) {
      this.#suspects.delete(vm);
      return;
    }
    const since = this.#suspects.get(vm) ?? this.#clock.monotonicMs();
    this.#suspects.set(vm, since);
    if (this.#clock.monotonicMs() - since < this.#options.hungAfterMs) return;
    this.#suspects.delete(vm);
    this.#log.warn({ sandbox_id: vm.files.id }, "a machine stopped answering; ending it");
    await vm.endAsHung();
  }
}
