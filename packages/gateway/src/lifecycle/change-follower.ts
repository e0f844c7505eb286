/**
 * Follows what other gateways of the database write: waiters and routes hear of it as of what is written here.
 *
 *   told, or a second passed ──▶ reads what is new and what was missing ──▶ Records.hear
 *
 * Sequences are given before their transactions commit. One that is passed over is missing: it is asked for again until it is
 * there, or a minute is over, in which every transaction has ended. After half an hour without a look everything is read anew.
 * Owns where it stands, in memory: the next start reads all records.
 */
import type { Clock, Log } from "@cloche/base";
import type { Changes } from "../database/changes.ts";
import { gatewayLimits } from "../limits.ts";

const { changeLookMs, changePage, changeMissingMs, changeOverlap, changeKeepMs, changePruneMs } =
  gatewayLimits;

export interface ChangeFollowerDependencies {
  changes: Changes;
  clock: Clock;
  log: Log;
  /** Tells what these sandboxes now are. */
  hear(sandboxIds: readonly string[]): Promise<void>;
  /** Tells what all are; those that are gone too. */
  readAll(): Promise<void>;
}

/** Of every notice: made once, for each error takes a stack. */
const isTold = new Error("there are changes");

export class ChangeFollower {
  readonly #needs: ChangeFollowerDependencies;
  readonly #stop = new AbortController();
  #wake = new AbortController();
  #isTold = false;
  #last = 0;
  /** Sequences passed over, with when they were. */
  readonly #missing = new Map<number, number>();
  #lookedAtMs = 0;
  #prunedAtMs: number;
  #signal: { close(): Promise<void> } | undefined;
  #running: Promise<void> | undefined;

  constructor(needs: ChangeFollowerDependencies) {
    this.#needs = needs;
    this.#prunedAtMs = needs.clock.monotonicMs();
  }

  /** Resolves when all records were read once; from then on it follows. */
  async start(): Promise<void> {
    this.#signal = this.#needs.changes.listen(() => this.#told());
    await this.#begin();
    this.#running = this.#follow();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    this.#wake.abort();
    await Promise.all([this.#running, this.#signal?.close()]);
  }

  #told(): void {
    this.#isTold = true;
    this.#wake.abort(isTold);
  }

  /** Takes its stand before all is read, with an overlap for what is being committed. */
  async #begin(): Promise<void> {
    const { changes, clock, readAll } = this.#needs;
    const newest = await changes.newest(changeOverlap);
    this.#missing.clear();
    this.#last = (newest[0] ?? 1) - 1;
    for (const sequence of newest) this.#advance(sequence);
    await readAll();
    this.#lookedAtMs = clock.monotonicMs();
  }

  async #follow(): Promise<void> {
    const { clock, log } = this.#needs;
    while (!this.#stop.signal.aborted) {
      this.#isTold = false;
      await this.#look().catch((err: unknown) =>
        log.warn({ err }, "changes of other gateways could not be read"),
      );
      if (this.#isTold || this.#stop.signal.aborted) continue;
      this.#wake = new AbortController();
      await clock.sleep(changeLookMs, this.#wake.signal).catch(() => undefined);
    }
  }

  async #look(): Promise<void> {
    const { changes, clock, hear } = this.#needs;
    const nowMs = clock.monotonicMs();
    // The log reaches no further back than that.
    if (nowMs - this.#lookedAtMs > changeKeepMs / 2) await this.#begin();
    for (const [sequence, sinceMs] of this.#missing)
      if (nowMs - sinceMs > changeMissingMs) this.#missing.delete(sequence);
    for (;;) {
      const found = await changes.read(this.#last, [...this.#missing.keys()], changePage);
      if (found.length > 0) await hear([...new Set(found.map(({ sandboxId }) => sandboxId))]);
      for (const { sequence } of found) this.#advance(sequence);
      if (found.length < changePage) break;
    }
    this.#lookedAtMs = nowMs;
    if (nowMs - this.#prunedAtMs < changePruneMs) return;
    this.#prunedAtMs = nowMs;
    await changes.prune(changeKeepMs);
  }

  #advance(sequence: number): void {
    this.#missing.delete(sequence);
    const nowMs = this.#needs.clock.monotonicMs();
    for (let passed = this.#last + 1; passed < sequence; passed += 1) this.#missing.set(passed, nowMs);
    this.#last = Math.max(this.#last, sequence);
  }
}
