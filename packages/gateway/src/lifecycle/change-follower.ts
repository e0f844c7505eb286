/**
 * Follows records that other gateways of the database write, so that waiters and routes hear of them as of writes made
 * here.
 *
 *   notified, or a second passed ──▶ new and missing sequence numbers are read ──▶ Records.hear
 *
 * A change gets its sequence number before its transaction commits, so a lower number may appear later. A number that
 * was passed over is missing: the follower asks for it again for a minute, by when every transaction has ended. After
 * half an hour without a successful look all records are read anew. The position is kept in memory; the next start
 * reads all records.
 */
import type { Clock, Log } from "@cloche/base";
import type { ChangeLog } from "../database/change-log.ts";
import { gatewayLimits } from "../limits.ts";

const { changePollMs, changePage, changeMissingMs, changeOverlap, changeKeepMs, changePruneMs } =
  gatewayLimits;

export interface ChangeFollowerDependencies {
  changeLog: ChangeLog;
  clock: Clock;
  log: Log;
  /** Reads these records and tells their listeners. */
  onChanged(sandboxIds: readonly string[]): Promise<void>;
  /** The same for all records, and for those that are gone. */
  readAll(): Promise<void>;
}

/** The abort reason of every notification. Created once, because creating an error captures a stack. */
const hasChanges = new Error("there are changes");

export class ChangeFollower {
  readonly #needs: ChangeFollowerDependencies;
  readonly #stop = new AbortController();
  #wake = new AbortController();
  #hasChanges = false;
  #last = 0;
  /** Sequence numbers that were passed over, and when. */
  readonly #missing = new Map<number, number>();
  #readAtMs = 0;
  #prunedAtMs: number;
  #signal: { close(): Promise<void> } | undefined;
  #running: Promise<void> | undefined;

  constructor(needs: ChangeFollowerDependencies) {
    this.#needs = needs;
    this.#prunedAtMs = needs.clock.monotonicMs();
  }

  /** Resolves when all records were read once, and follows from then on. */
  async start(): Promise<void> {
    this.#signal = this.#needs.changeLog.listen(() => this.#signalled());
    await this.#begin();
    this.#running = this.#follow();
  }

  async close(): Promise<void> {
    this.#stop.abort(new Error("the gateway is closing"));
    this.#wake.abort();
    await Promise.all([this.#running, this.#signal?.close()]);
  }

  #signalled(): void {
    this.#hasChanges = true;
    this.#wake.abort(hasChanges);
  }

  /** Sets the position, then reads all records. Gaps among the newest numbers are missing: they may still commit. */
  async #begin(): Promise<void> {
    const { changeLog, clock, readAll } = this.#needs;
    const newest = await changeLog.newest(changeOverlap);
    this.#missing.clear();
    this.#last = (newest[0] ?? 1) - 1;
    for (const sequence of newest) this.#advance(sequence);
    await readAll();
    this.#readAtMs = clock.monotonicMs();
  }

  async #follow(): Promise<void> {
    const { clock, log } = this.#needs;
    while (!this.#stop.signal.aborted) {
      this.#hasChanges = false;
      await this.#refresh().catch((err: unknown) =>
        log.warn({ err }, "reading changes of other gateways failed"),
      );
      if (this.#hasChanges || this.#stop.signal.aborted) continue;
      this.#wake = new AbortController();
      await clock.sleep(changePollMs, this.#wake.signal).catch(() => undefined);
    }
  }

  async #refresh(): Promise<void> {
    const { changeLog, clock, onChanged } = this.#needs;
    const nowMs = clock.monotonicMs();
    // Older changes may have been pruned.
    if (nowMs - this.#readAtMs > changeKeepMs / 2) await this.#begin();
    for (const [sequence, sinceMs] of this.#missing)
      if (nowMs - sinceMs > changeMissingMs) this.#missing.delete(sequence);
    for (;;) {
      const found = await changeLog.read(this.#last, [...this.#missing.keys()], changePage);
      if (found.length > 0) await onChanged([...new Set(found.map(({ sandboxId }) => sandboxId))]);
      for (const { sequence } of found) this.#advance(sequence);
      if (found.length < changePage) break;
    }
    this.#readAtMs = nowMs;
    if (nowMs - this.#prunedAtMs < changePruneMs) return;
    this.#prunedAtMs = nowMs;
    await changeLog.prune(changeKeepMs);
  }

  #advance(sequence: number): void {
    this.#missing.delete(sequence);
    const nowMs = this.#needs.clock.monotonicMs();
    for (let passed = this.#last + 1; passed < sequence; passed += 1) this.#missing.set(passed, nowMs);
    this.#last = Math.max(this.#last, sequence);
  }
}
