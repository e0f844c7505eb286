/**
 * Removes unnamed objects from a cluster's storage. Every host asks from time to time; a gateway lets one of them sweep (SweepCalls).
 * Sweeps may overlap or be repeated: an unnamed object is never named again.
 *
 *   look ──not ours──▶ wait
 *     └ claimed ──▶ garbage, in batches ──▶ once a day: list the store, ask, remove ──▶ wait
 *
 * Owns nothing that must survive: a sweep that was cut off is repeated.
 */
import { type Clock, type Log, regularly } from "@cloche/base";
import type { BlobStore } from "../blob/blob-store.ts";
import { unnamedKeptMs } from "./archive.ts";
import { keysAtOnce, type SweepCalls } from "./checkpoint-names.ts";

const checkEveryMs = 600_000;
/** Most batches of one look; the rest waits for the next look. */
const batchesMax = 100;
const folders = ["packs/", "checkpoints/", "images/"] as const;

export interface StorageSweeperParts {
  blobs: BlobStore;
  calls: SweepCalls;
  clock: Clock;
  log: Log;
}

export class StorageSweeper {
  readonly #parts: StorageSweeperParts;
  readonly #stopping = new AbortController();
  #running: Promise<void> = Promise.resolve();

  constructor(parts: StorageSweeperParts) {
    this.#parts = parts;
  }

  start(): void {
    this.#running = this.#run();
  }

  async stop(): Promise<void> {
    this.#stopping.abort(new Error("the host is stopping"));
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock, log } = this.#parts;
    const { signal } = this.#stopping;
    const failed = (err: unknown) => log.warn({ err }, "storage could not be swept; trying again");
    await regularly({ everyMs: checkEveryMs, first: "later", clock, signal, failed }, () => this.sweep());
  }

  /** Answers how many objects were removed; 0 if another host sweeps. */
  async sweep(): Promise<number> {
    const { calls, log } = this.#parts;
    let removed = 0;
    let isListDue = false;
    for (let batch = 0; batch < batchesMax; batch += 1) {
      this.#stopping.signal.throwIfAborted();
      const claim = await calls.claim();
      if (claim === undefined) return removed;
      isListDue = claim.isListDue;
      if (claim.garbage.length === 0) break;
      for (const key of claim.garbage) removed += await this.#remove(key);
      await calls.swept(claim.garbage, false);
    }
    if (isListDue) {
      for (const folder of folders) removed += await this.#sweepFolder(folder);
      await calls.swept([], true);
    }
    if (removed > 0) log.info({ removed }, "unreferenced objects removed from storage");
    return removed;
  }

  /** Removes an object; for a key that ends in `/`, all objects below it. */
  async #remove(key: string): Promise<number> {
    const { blobs } = this.#parts;
    const keys = key.endsWith("/") ? (await blobs.list(key)).map((entry) => entry.key) : [key];
    for (const one of keys) await blobs.delete(one);
    return keys.length;
  }

  async #sweepFolder(folder: string): Promise<number> {
    const { blobs, calls, clock } = this.#parts;
    const isOld = ({ modifiedAtMs }: { modifiedAtMs: number }): boolean =>
      clock.nowMs() - modifiedAtMs > unnamedKeptMs;
    const old = (await blobs.list(folder)).filter(isOld).map(({ key }) => key);
    let removed = 0;
    for (let at = 0; at < old.length; at += keysAtOnce) {
      this.#stopping.signal.throwIfAborted();
      for (const key of await calls.unnamed(old.slice(at, at + keysAtOnce)))
        removed += await this.#remove(key);
    }
    return removed;
  }
}
