/**
 * Requests under way, with streams: counted for each API key and each team, and cut when their key is no longer valid. A request checks its
 * key once, when it comes, and a stream can stay open for hours.
 */
import type { ServerResponse } from "node:http";
import { type Caller, Refusal } from "./caller.ts";

export interface UnderWayLimits {
  requestsPerKey: number;
  requestsPerTeam: number;
  /** Bytes of the bodies of requests under way. */
  bodyBytesPerTeam: number;
}

interface OfKey {
  readonly key: string;
  readonly caller: Caller;
  /** With the bytes of their requests' bodies. */
  readonly responses: Map<ServerResponse, number>;
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

  /**
   * Counts a request with its body until its answer has ended; 429 when the key or its team has too many under way.
   * Returns what tells how many bytes the body had in the end.
   */
  enter(key: string, caller: Caller, response: ServerResponse, bytes: number): (read: number) => void {
    const { keyHash, teamId } = caller;
    const { requestsPerKey, requestsPerTeam, bodyBytesPerTeam } = this.#limits;
    let ofTeam = 0;
    let bytesOfTeam = 0;
    for (const one of this.#ofKeys.values()) {
      if (one.caller.teamId !== teamId) continue;
      ofTeam += one.responses.size;
      for (const held of one.responses.values()) bytesOfTeam += held;
    }
    const own = this.#ofKeys.get(keyHash) ?? { key, caller, responses: new Map() };
    if (own.responses.size >= requestsPerKey) throw tooMany(requestsPerKey, "requests with this key");
    if (ofTeam >= requestsPerTeam) throw tooMany(requestsPerTeam, "requests of this team");
    if (bytesOfTeam + bytes > bodyBytesPerTeam)
      throw tooMany(bodyBytesPerTeam, "bytes of bodies of this team's requests");
    this.#ofKeys.set(keyHash, own);
    own.responses.set(response, bytes);
    response.once("close", () => {
      own.responses.delete(response);
      if (own.responses.size === 0) this.#ofKeys.delete(keyHash);
    });
    return (read) => {
      if (own.responses.has(response)) own.responses.set(response, read);
    };
  }

  /** Cuts the answers of keys that are no longer valid; returns their callers. A key that cannot be checked now stays. */
  async cutRevoked(teamOf: (apiKey: string) => Promise<string | undefined>): Promise<Caller[]> {
    const checks = [...this.#ofKeys.values()].map(async ({ key, caller, responses }) => {
      const teamId = await teamOf(key).catch(() => caller.teamId);
      if (teamId !== undefined) return [];
      for (const response of responses.keys()) response.destroy();
      return [caller];
    });
    return (await Promise.all(checks)).flat();
  }
}

const tooMany = (most: number, what: string): Refusal =>
  new Refusal(429, `${most} ${what} are under way, which is the most; wait for some`, {
    "retry-after": "1",
  });
