/**
 * Decides whether this host's machines may run. Combines the lease (lease-keeper.ts) with the guard that enforces it (guard.ts).
 *
 *   opened ──registered──▶ held ◀────────── renewed late ──────────┐
 *      │                    └──the term passes: the guard freezes──▶ over
 *      │ registered, but it had been declared lost                   │ the same
 *      ▼                                                             │
 *   unadmitted: frozen, lease renewed ◀──────────────────────────────┘
 *      └──admit: a gateway named the machines that stay this host's──▶ held
 *
 * Over a restart of this process the guard keeps the deadline and the database keeps that admission is due. Nothing else must survive.
 */
import type { Clock, Log, Metrics } from "@cloche/base";
import type { FencedLease } from "./call-fence.ts";
import type { GuardStatus } from "./guard.ts";
import {
  type HostDescription,
  type OperatorState,
  LeaseKeeper,
  type RegistryClient,
  type Term,
} from "./lease-keeper.ts";

/** Implemented by `Guard`. Each call except `close` resolves when it is done. */
export interface LeaseGuard {
  open(): Promise<GuardStatus>;
  until(bootMs: number): Promise<GuardStatus>;
  status(): Promise<GuardStatus>;
  close(): void;
  end(): Promise<void>;
}

export interface HostLeaseParts {
  /** Called once, by `open`. */
  describe(): Promise<HostDescription>;
  gateways: readonly RegistryClient[];
  guard: LeaseGuard;
  bootMs: () => number;
  clock: Pick<Clock, "sleep">;
  log: Log;
  metrics: Metrics;
}

/** How long the host's program may be stopped for an upgrade while its machines keep running. */
export const awayMs = 600_000;
const checkEveryMs = 500;

export class HostLease implements FencedLease {
  readonly #parts: HostLeaseParts;
  #keeper: LeaseKeeper | undefined;
  readonly #stop = new AbortController();
  readonly #whenHeld: (() => void)[] = [];
  #term: Term | undefined;
  #isAdmitted = false;
  #wasLost = false;
  /** The value of `isHeld` that was logged last. */
  #isReportedHeld: boolean | undefined;
  #frozenSinceMs = 0;
  /** Frozen machines, as the guard last counted them. */
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

  /** The operator's word for this host. */
  get operatorState(): OperatorState {
    return this.#term?.operatorState ?? "open";
  }

  /** Whether the host had been declared lost before its present generation. */
  get wasLost(): boolean {
    return this.#wasLost;
  }

  /** Whether a gateway must name the machines that stay this host's before any may go on. */
  get awaitsAdmission(): boolean {
    return this.#term !== undefined && !this.#isAdmitted;
  }

  /** Whether machines may run now. Compares with the clock, so that it is right even after this process was stopped. */
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

  /** Call once the machines' records are loaded. Resolves when the machines may run. */
  async mayGoOn(): Promise<void> {
    while (this.#term === undefined) await this.#parts.clock.sleep(checkEveryMs, this.#stop.signal);
    await this.whenHeld();
  }

  /** Call once every machine left here is this host's. Lets them go on. */
  async admit(): Promise<void> {
    this.#isAdmitted = true;
    if (this.#term !== undefined) this.#frozen = (await this.#parts.guard.until(this.#term.untilMs)).frozen;
    this.#check();
  }

  /** `machinesGoOn`: they keep running for `awayMs` while this program is stopped. Otherwise no machine is left and the guard ends. */
  async close({ machinesGoOn }: { machinesGoOn: boolean }): Promise<void> {
    const { guard, log } = this.#parts;
    const { isHeld } = this;
    const untilMs = machinesGoOn && isHeld ? await this.#keeper?.leave(awayMs) : undefined;
    this.#stop.abort(new Error("the host is stopping"));
    await Promise.all([this.#keeper?.stop(), this.#watching]);
    const { machines } = machinesGoOn ? await guard.status() : { machines: 0 };
    if (machines === 0) return guard.end();
    if (untilMs !== undefined) await guard.until(untilMs);
    else if (isHeld)
      log.warn(
        {},
        "no gateway took the notice that this host leaves: its machines are frozen when its lease expires",
      );
    guard.close();
  }

  #registered(term: Term, wasLost: boolean): void {
    const { log } = this.#parts;
    this.#wasLost = wasLost;
    const fields = { generation: term.generation, was_lost: wasLost, state: term.operatorState };
    log.info(fields, "registered with a gateway");
    if (!wasLost) {
      this.#isAdmitted = true;
      return this.#extend(term);
    }
    this.#isAdmitted = false;
    this.#term = term;
    // They should be frozen already; this makes sure, should clocks have gone wrong.
    this.#setGuard(0);
    log.error(
      fields,
      "this host had been declared lost: its machines stay frozen until a gateway says which are still its own",
    );
  }

  #extend(term: Term): void {
    const { operatorState } = this;
    this.#term = term;
    if (operatorState !== term.operatorState)
      this.#parts.log.info({ state: term.operatorState }, "the operator changed the state of this host");
    if (this.#isAdmitted) this.#setGuard(term.untilMs);
    this.#check();
  }

  #setGuard(untilMs: number): void {
    const { guard, log } = this.#parts;
    const confirmed = (status: GuardStatus): void => {
      this.#frozen = status.frozen;
      if (this.isHeld && status.frozen > 0) log.error({ ...status }, "machines did not thaw");
    };
    guard.until(untilMs).then(confirmed, (err: unknown) => {
      if (!this.#stop.signal.aborted) log.error({ err }, "lease not sent to the guard");
    });
  }

  async #watch(): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      this.#check();
      if (!this.isHeld) this.#count();
      await this.#parts.clock.sleep(checkEveryMs, signal).catch(() => undefined);
    }
  }

  /** Not awaited: a question to a guard that does not answer is repeated without end. */
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

  /** Wakes waiters and logs when `isHeld` changed. */
  #check(): void {
    const { isHeld } = this;
    if (isHeld) for (const resolve of this.#whenHeld.splice(0)) resolve();
    if (isHeld === this.#isReportedHeld || (this.#isReportedHeld === undefined && !isHeld)) return;
    const { log, bootMs } = this.#parts;
    const isFirst = this.#isReportedHeld === undefined;
    this.#isReportedHeld = isHeld;
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
