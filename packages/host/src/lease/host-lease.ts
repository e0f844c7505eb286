/**
 * Whether this host's machines may run: its lease (lease-keeper.ts) and the guard that holds them to it (guard.ts), put together.
 *
 *   opened ──registered──▶ held ◀────────── renewed late ──────────┐
 *      │                    └──the term passes: the guard freezes──▶ over
 *      │ registered, but it had been declared lost                   │ so, too
 *      ▼                                                             │
 *   unadmitted: frozen, lease renewed ◀──────────────────────────────┘
 *      └──admit: a gateway said which machines are still this host's──▶ held
 *
 * The guard keeps the deadline over restarts of this process, and the database that the host awaits admission; nothing else must survive.
 */
import type { Clock, Log, Metrics } from "@cloche/base";
import type { FencedLease } from "./call-fence.ts";
import type { GuardStatus } from "./guard.ts";
import {
  type HostDescription,
  type HostWord,
  LeaseKeeper,
  type RegistryClient,
  type Term,
} from "./lease-keeper.ts";

/** As `Guard` is one. Each call but `close` answers when it is done. */
export interface LeaseGuard {
  open(): Promise<GuardStatus>;
  until(bootMs: number): Promise<GuardStatus>;
  status(): Promise<GuardStatus>;
  close(): void;
  end(): Promise<void>;
}

export interface HostLeaseParts {
  /** Asked once, when it opens. */
  describe(): Promise<HostDescription>;
  gateways: readonly RegistryClient[];
  guard: LeaseGuard;
  bootMs: () => number;
  clock: Pick<Clock, "sleep">;
  log: Log;
  metrics: Metrics;
}

/** How long a host may be away whose program is stopped for an upgrade while its machines go on. */
export const AWAY_MS = 600_000;
const LOOK_EVERY_MS = 500;

export class HostLease implements FencedLease {
  readonly #parts: HostLeaseParts;
  #keeper: LeaseKeeper | undefined;
  readonly #stop = new AbortController();
  readonly #whenHeld: (() => void)[] = [];
  #term: Term | undefined;
  #isAdmitted = false;
  #wasLost = false;
  /** As it was told last. */
  #isToldHeld: boolean | undefined;
  #frozenSinceMs = 0;
  /** As the guard counted last. */
  #frozen = 0;
  #isCounting = false;
  #watching: Promise<void> | undefined;

  constructor(parts: HostLeaseParts) {
    this.#parts = parts;
    const { metrics, bootMs } = parts;
    metrics.gauge(
      "cloche_host_lease_seconds",
      "Until this host's machines are frozen, unless a gateway renews its lease; 0: they are.",
      () => [{ value: this.isHeld ? Math.max(0, (this.#term?.untilMs ?? 0) - bootMs()) / 1_000 : 0 }],
    );
    metrics.gauge(
      "cloche_host_frozen_machines",
      "Machines that are frozen because this host's lease is over.",
      () => [{ value: this.#frozen }],
    );
  }

  /** Undefined: not registered yet. */
  get generation(): number | undefined {
    return this.#term?.generation;
  }

  /** The operator's. */
  get word(): HostWord {
    return this.#term?.word ?? "open";
  }

  /** Of the present generation: the host had been declared lost before. */
  get wasLost(): boolean {
    return this.#wasLost;
  }

  /** Whether a gateway must say which machines are still this host's before they go on. */
  get awaitsAdmission(): boolean {
    return this.#term !== undefined && !this.#isAdmitted;
  }

  /** By the clock, so that it is true also where this process stood still until now. */
  get isHeld(): boolean {
    return this.#isAdmitted && this.#term !== undefined && this.#parts.bootMs() < this.#term.untilMs;
  }

  /** Starts or adopts the guard and begins to register; does not wait for a gateway. */
  async open(): Promise<void> {
    const { guard, log } = this.#parts;
    const status = await guard.open();
    this.#frozen = status.frozen;
    if (status.frozen > 0)
      log.warn({ ...status }, "machines of this host are frozen until its lease is renewed");
    this.#keeper = new LeaseKeeper({
      ...this.#parts,
      description: await this.#parts.describe(),
      registered: (term, wasLost) => this.#registered(term, wasLost),
      renewed: (term) => this.#extend(term),
    });
    this.#keeper.start();
    this.#watching = this.#watch();
  }

  /** Resolves when machines may run; never rejects, and stays pending once the host stops. */
  whenHeld(): Promise<void> {
    if (this.isHeld) return Promise.resolve();
    return new Promise((resolve) => this.#whenHeld.push(resolve));
  }

  /** Once it is known which machines are here. Resolves when they may run. */
  async mayGoOn(): Promise<void> {
    while (this.#term === undefined) await this.#parts.clock.sleep(LOOK_EVERY_MS, this.#stop.signal);
    await this.whenHeld();
  }

  /** All machines that are left here are this host's: they go on. */
  async admit(): Promise<void> {
    this.#isAdmitted = true;
    if (this.#term !== undefined) this.#frozen = (await this.#parts.guard.until(this.#term.untilMs)).frozen;
    this.#look();
  }

  /** `machinesGoOn`: they do while this program is stopped, for `AWAY_MS`. Otherwise none is left, and the guard ends. */
  async close({ machinesGoOn }: { machinesGoOn: boolean }): Promise<void> {
    const { guard, log } = this.#parts;
    const { isHeld } = this;
    const untilMs = machinesGoOn && isHeld ? await this.#keeper?.leave(AWAY_MS) : undefined;
    this.#stop.abort(new Error("the host is stopping"));
    await Promise.all([this.#keeper?.stop(), this.#watching]);
    const { machines } = machinesGoOn ? await guard.status() : { machines: 0 };
    if (machines === 0) return guard.end();
    if (untilMs !== undefined) await guard.until(untilMs);
    else if (isHeld)
      log.warn({}, "no gateway heard that this host leaves: its machines are frozen when its lease is over");
    guard.close();
  }

  #registered(term: Term, wasLost: boolean): void {
    const { log } = this.#parts;
    this.#wasLost = wasLost;
    const fields = { generation: term.generation, was_lost: wasLost, state: term.word };
    log.info(fields, "registered with a gateway");
    if (!wasLost) {
      this.#isAdmitted = true;
      return this.#extend(term);
    }
    this.#isAdmitted = false;
    this.#term = term;
    // They are frozen, unless clocks went wrong.
    this.#tellGuard(0);
    log.error(
      fields,
      "this host had been declared lost: its machines stay frozen until a gateway says which are still its own",
    );
  }

  #extend(term: Term): void {
    const { word } = this;
    this.#term = term;
    if (word !== term.word)
      this.#parts.log.info({ state: term.word }, "the operator's word for this host changed");
    if (this.#isAdmitted) this.#tellGuard(term.untilMs);
    this.#look();
  }

  #tellGuard(untilMs: number): void {
    const { guard, log } = this.#parts;
    const told = (status: GuardStatus): void => {
      this.#frozen = status.frozen;
      if (this.isHeld && status.frozen > 0) log.error({ ...status }, "machines did not thaw");
    };
    guard.until(untilMs).then(told, (err: unknown) => {
      if (!this.#stop.signal.aborted) log.error({ err }, "the guard was not told of the lease");
    });
  }

  async #watch(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      this.#look();
      if (!this.isHeld) this.#count();
      await this.#parts.clock.sleep(LOOK_EVERY_MS, signal).catch(() => undefined);
    }
  }

  /** Beside everything else: a guard that does not answer is asked for as long as it takes. */
  #count(): void {
    if (this.#isCounting) return;
    this.#isCounting = true;
    const counted = this.#parts.guard.status().then(({ frozen }) => {
      this.#frozen = frozen;
    });
    void counted
      .catch(() => undefined)
      .finally(() => {
        this.#isCounting = false;
      });
  }

  /** Tells of what has changed. */
  #look(): void {
    const { isHeld } = this;
    if (isHeld) for (const resolve of this.#whenHeld.splice(0)) resolve();
    if (isHeld === this.#isToldHeld || (this.#isToldHeld === undefined && !isHeld)) return;
    const { log, bootMs } = this.#parts;
    const isFirst = this.#isToldHeld === undefined;
    this.#isToldHeld = isHeld;
    if (isFirst) return;
    if (isHeld) {
      const seconds = Math.round((bootMs() - this.#frozenSinceMs) / 1_000);
      return log.warn({ seconds }, "this host's lease is held again: its machines go on");
    }
    this.#frozenSinceMs = bootMs();
    if (this.#isAdmitted)
      log.error(
        {},
        "no gateway renewed this host's lease: its machines are frozen until one does. Can it reach the gateways?",
      );
  }
}
