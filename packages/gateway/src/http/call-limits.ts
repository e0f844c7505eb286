/**
 * Limits how fast an API key may call, and how many calls of a team may run at once. Keeps counters in memory, for one
 * gateway. Each of several gateways allows its share, so that the limits hold over all (gateway-count.ts). A call
 * beyond the limit is answered 429 with Retry-After.
 */
import { type Clock, RateLimit } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { Caller } from "../lifecycle/audit-log.ts";

export interface CallLimitSettings {
  /** Sustained rate of each API key; a burst may use five seconds' worth at once. 0: no limit. */
  callsPerSecond: number;
  /** Calls of a team that run at once. 0: no limit. */
  concurrentCalls: number;
}

const secondsOfBurst = 5;

export class CallLimits {
  readonly #settings: CallLimitSettings;
  readonly #rate: RateLimit;
  readonly #underWay = new Map<string, number>();
  readonly #gateways: () => number;

  /** `gateways`: how many gateways share the limits. */
  constructor(settings: CallLimitSettings, clock: Pick<Clock, "monotonicMs">, gateways = () => 1) {
    this.#settings = settings;
    this.#gateways = gateways;
    const monotonicMs = (): number => clock.monotonicMs();
    this.#rate = new RateLimit({
      perSecond: settings.callsPerSecond,
      burstSeconds: secondsOfBurst,
      monotonicMs,
    });
  }

  /** Counts a call. The returned function must be called once when the call is over. Throws `resource_exhausted`. */
  enter({ actor, teamId }: Caller): () => void {
    const { callsPerSecond, concurrentCalls } = this.#settings;
    const gateways = this.#gateways();
    // Each call also counts for the calls that the other gateways may be answering.
    const waitSeconds = this.#rate.take(actor, gateways);
    if (waitSeconds > 0)
      throw tooMany(`API key ${actor} calls too fast; at most ${callsPerSecond} calls a second`, waitSeconds);
    const underWay = this.#underWay.get(teamId) ?? 0;
    const atOnce = Math.max(1, Math.floor(concurrentCalls / gateways));
    if (concurrentCalls > 0 && underWay >= atOnce)
      throw tooMany(
        `the team has ${underWay} calls under way${gateways > 1 ? " at this gateway" : ""}; at most ${atOnce} are allowed`,
        1,
      );
    this.#underWay.set(teamId, underWay + 1);
    return () => {
      const left = (this.#underWay.get(teamId) ?? 1) - 1;
      if (left > 0) this.#underWay.set(teamId, left);
      else this.#underWay.delete(teamId);
    };
  }
}

const tooMany = (message: string, retryAfterSeconds: number): ClocheError =>
  new ClocheError("resource_exhausted", message, { resource: "quota", retryAfterSeconds });
