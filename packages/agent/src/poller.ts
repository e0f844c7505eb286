/**
 * Makes the epoll instance of the event loop anew (addon/poller.c), because gVisor restores it broken. Nothing tells a
 * program that it was restored, so it is done again and again around every moment at which the memory may be saved.
 */
import type { Log } from "./log.ts";

export interface Poller {
  /** Now: after a restore. */
  renew(): void;
  /** From now on for a while: the memory may be saved, and what is restored then mends itself. */
  expectSnapshot(): void;
}

const pauseMs = 100;
/** Counted, not timed: the clock of a restored machine jumps. */
const rounds = 100;

/** Without the addon (outside sandboxes) a poller that does nothing. */
export function openPoller(path: string, log: Log): Poller {
  const addon = { exports: {} as { renew(): void } };
  try {
    process.dlopen(addon, path);
  } catch (error) {
    log.info("no poller: the event loop is left as it is", { error });
    return { renew: () => undefined, expectSnapshot: () => undefined };
  }
  return new EpollPoller(() => addon.exports.renew(), log);
}

class EpollPoller implements Poller {
  readonly #renew: () => void;
  readonly #log: Log;
  #roundsLeft = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(renew: () => void, log: Log) {
    this.#renew = renew;
    this.#log = log;
  }

  renew(): void {
    try {
      this.#renew();
    } catch (error) {
      this.#log.warn("the event loop's poller was not renewed", { error });
    }
  }

  expectSnapshot(): void {
    this.#roundsLeft = rounds;
    this.#timer ??= setInterval(() => this.#round(), pauseMs).unref();
  }

  #round(): void {
    this.renew();
    this.#roundsLeft -= 1;
    if (this.#roundsLeft > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}
