/**
 * How fast an API key may call, and how many calls of a team may be under way at once. Owns counters in memory, of one
 * gateway: several of them allow as many times as much. What comes too fast is answered 429 with Retry-After.
 */
import type { Clock } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { Caller } from "../lifecycle/audit-log.ts";

export interface CallLimitSettings {
  /** Sustained, per API key; a burst may be five seconds' worth. 0: no limit. */
  callsPerSecond: number;
  /** Under way at once, per team. 0: no limit. */
  concurrentCalls: number;
}

interface Bucket {
  tokens: number;
  atMs: number;
}

const BURST_SECONDS = 5;
/** Keys that have not called for so long are forgotten: their bucket is full anyway. */
const FORGET_MS = BURST_SECONDS * 1_000;
const SWEEP_SIZE = 1_024;

export class CallLimits {
  readonly #settings: CallLimitSettings;
  readonly #clock: Pick<Clock, "monotonicMs">;
  readonly #buckets = new Map<string, Bucket>();
  readonly #underWay = new Map<string, number>();

  constructor(settings: CallLimitSettings, clock: Pick<Clock, "monotonicMs">) {
    this.#settings = settings;
    this.#clock = clock;
  }

  /** Counts a call; what it answers must be called once when the call is over. Throws `resource_exhausted`. */
  enter({ actor, teamId }: Caller): () => void {
    this.#spend(actor);
    const { concurrentCalls } = this.#settings;
    const underWay = this.#underWay.get(teamId) ?? 0;
    if (concurrentCalls > 0 && underWay >= concurrentCalls)
      throw tooMany(`the team has ${underWay} calls under way; at most ${concurrentCalls} are allowed`, 1);
    this.#underWay.set(teamId, underWay + 1);
    return () => {
      const left = (this.#underWay.get(teamId) ?? 1) - 1;
      if (left > 0) this.#underWay.set(teamId, left);
      else this.#underWay.delete(teamId);
    };
  }

  #spend(key: string): void {
    const { callsPerSecond } = this.#settings;
    if (callsPerSecond === 0) return;
    const nowMs = this.#clock.monotonicMs();
    const burst = callsPerSecond * BURST_SECONDS;
    const bucket = this.#buckets.get(key) ?? { tokens: burst, atMs: nowMs };
    bucket.tokens = Math.min(burst, bucket.tokens + ((nowMs - bucket.atMs) / 1_000) * callsPerSecond);
    bucket.atMs = nowMs;
    if (!this.#buckets.has(key)) this.#remember(key, bucket, nowMs);
    if (bucket.tokens < 1) {
      const waitSeconds = Math.max(1, Math.ceil((1 - bucket.tokens) / callsPerSecond));
      throw tooMany(`API key ${key} calls too fast; at most ${callsPerSecond} calls a second`, waitSeconds);
    }
    bucket.tokens -= 1;
  }

  #remember(key: string, bucket: Bucket, nowMs: number): void {
    if (this.#buckets.size >= SWEEP_SIZE)
      for (const [known, { atMs }] of this.#buckets)
        if (nowMs - atMs > FORGET_MS) this.#buckets.delete(known);
    this.#buckets.set(key, bucket);
  }
}

const tooMany = (message: string, retryAfterSeconds: number): ClocheError =>
  new ClocheError("resource_exhausted", message, { resource: "quota", retryAfterSeconds });
