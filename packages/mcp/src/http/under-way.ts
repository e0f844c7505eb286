/**
 * Requests under way, with streams: counted for each API key and each team, and cut when their key is no longer valid. A request checks its
 * key once, when it comes, and a stream can stay open for hours.
 */
import type { ServerResponse } from "node:http";
import { type Caller, Refusal } from "./caller.ts";

export interface UnderWayLimits {
  requestsPerKey: number;
  requestsPerTeam: number;
}

interface OfKey {
  readonly key: string;
  readonly caller: Caller;
  readonly responses: Set<ServerResponse>;
}

export class UnderWay {
  readonly #limits: UnderWayLimits;
  readonly #ofKeys = new Map<string, OfKey>();

  constructor(limits: UnderWayLimits) {
    this.#limits = limits;
  }

  get isEmpty(): boolean {
    return this.#ofKeys.size === 0;
  }

  /** Counts a request until its answer has ended; 429 when the key or its team has too many under way. */
  enter(key: string, caller: Caller, response: ServerResponse): void {
    const { keyHash, teamId } = caller;
    const { requestsPerKey, requestsPerTeam } = this.#limits;
    let ofTeam = 0;
    for (const one of this.#ofKeys.values()) if (one.caller.teamId === teamId) ofTeam += one.responses.size;
    const own = this.#ofKeys.get(keyHash) ?? { key, caller, responses: new Set() };
    if (own.responses.size >= requestsPerKey) throw tooMany(requestsPerKey, "with this key");
    if (ofTeam >= requestsPerTeam) throw tooMany(requestsPerTeam, "of this team");
    this.#ofKeys.set(keyHash, own);
    own.responses.add(response);
    response.once("close", () => {
      own.responses.delete(response);
      if (own.responses.size === 0) this.#ofKeys.delete(keyHash);
    });
  }

  /** Cuts the answers of keys that are no longer valid; returns their callers. A key that cannot be checked now stays. */
  async cutRevoked(teamOf: (apiKey: string) => Promise<string | undefined>): Promise<Caller[]> {
    const looks = [...this.#ofKeys.values()].map(async ({ key, caller, responses }) => {
      const teamId = await teamOf(key).catch(() => caller.teamId);
      if (teamId !== undefined) return [];
      for (const response of responses) response.destroy();
      return [caller];
    });
    return (await Promise.all(looks)).flat();
  }
}

const tooMany = (most: number, whose: string): Refusal =>
  new Refusal(429, `${most} requests ${whose} are under way, which is the most; wait for some`, {
    "retry-after": "1",
  });
