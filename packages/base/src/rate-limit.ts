/** Limits how often something may happen for each key: a rate, with bursts of some seconds' worth. Bounded memory. */
export interface RateLimitOptions {
  /** 0: no limit. */
  readonly perSecond: number;
  readonly burstSeconds: number;
  readonly monotonicMs: () => number;
}

interface Bucket {
  tokens: number;
  atMs: number;
}

const sweepSize = 1_024;

export class RateLimit {
  readonly #options: RateLimitOptions;
  readonly #buckets = new Map<string, Bucket>();
  #sweepAt = sweepSize;

  constructor(options: RateLimitOptions) {
    this.#options = options;
  }

  /** Returns 0 if it may happen now, else the whole seconds to wait. `cost`: how often it counts; at most a burst. */
  take(key: string, cost = 1): number {
    const { perSecond, burstSeconds, monotonicMs } = this.#options;
    if (perSecond === 0) return 0;
    const nowMs = monotonicMs();
    const burst = perSecond * burstSeconds;
    let bucket = this.#buckets.get(key);
    if (bucket === undefined) {
      this.#sweep(nowMs);
      bucket = { tokens: burst, atMs: nowMs };
      this.#buckets.set(key, bucket);
    }
    bucket.tokens = Math.min(burst, bucket.tokens + ((nowMs - bucket.atMs) / 1_000) * perSecond);
    bucket.atMs = nowMs;
    // A burst of less than one would never let anything through.
    const due = Math.min(cost, Math.max(1, burst));
    if (bucket.tokens < due) return Math.max(1, Math.ceil((due - bucket.tokens) / perSecond));
    bucket.tokens -= due;
    return 0;
  }

  get size(): number {
    return this.#buckets.size;
  }

  /** Forgets keys whose bucket is full again. */
  #sweep(nowMs: number): void {
    if (this.#buckets.size < this.#sweepAt) return;
    const fullAfterMs = this.#options.burstSeconds * 1_000;
    for (const [key, { atMs }] of this.#buckets) if (nowMs - atMs >= fullAfterMs) this.#buckets.delete(key);
    this.#sweepAt = Math.max(sweepSize, this.#buckets.size * 2);
  }
}
