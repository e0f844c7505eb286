/** Bodies of calls that this process reads whole, bounded for a team and for all teams: each may be of some MiB. */
import type { ServerResponse } from "node:http";
import { HeldBytes, type Hold, listenerBounds } from "@cloche/base";
import { E2bError } from "./e2b-error.ts";

/** The team of an API key; undefined: the key is not valid. */
export type TeamOf = (apiKey: string) => Promise<string | undefined>;

export class HeldBodies {
  readonly #held = new HeldBytes();
  readonly #teamOf: TeamOf;

  constructor(teamOf: TeamOf) {
    this.#teamOf = teamOf;
  }

  /** Counts what the caller makes the process hold, until the answer is over. */
  async of(apiKey: string, response: ServerResponse): Promise<Hold> {
    const teamId = await this.#teamOf(apiKey);
    if (teamId === undefined) throw new E2bError("unauthenticated", "the API key is not valid");
    if (response.closed) throw new E2bError("canceled", "the client went away");
    const { teamBytes, processBytes } = listenerBounds;
    const hold = this.#held.hold([
      { key: teamId, most: teamBytes },
      { key: "", most: processBytes },
    ]);
    response.once("close", () => hold.release());
    return hold;
  }
}
