import { ClocheError } from "@cloche/protocol";
import type { Route } from "@cloche/protocol/edge";
import type { EdgeLimits } from "../edge-limits.ts";

/** `bearer`: has the sandbox's token. `visitor`: anyone, at a public port. */
export type Waiter = "bearer" | "visitor";

/**
 * Limits the requests that wait for sandboxes to wake or to be restored: by sandbox and by team, visitors separately.
 * So no team takes another team's places, and no visitor takes the owner's.
 */
export class WaitingRoom {
  readonly #limits: EdgeLimits;
  readonly #counts = new Map<string, number>();

  constructor(limits: EdgeLimits) {
    this.#limits = limits;
  }

  /** Runs `wait` in a place of that sandbox; throws when none is free. */
  async within<T>(
    { sandboxId, teamId }: Pick<Route, "sandboxId" | "teamId">,
    waiter: Waiter,
    wait: () => Promise<T>,
  ): Promise<T> {
    const { waitingOfSandbox, waitingOfTeam, visitorsOfSandbox, visitorsOfTeam } = this.#limits;
    const [ofSandbox, ofTeam] =
      waiter === "bearer" ? [waitingOfSandbox, waitingOfTeam] : [visitorsOfSandbox, visitorsOfTeam];
    const places: [key: string, most: number, whose: string][] = [
      [`${waiter} sandbox ${sandboxId}`, ofSandbox, `sandbox ${sandboxId}`],
      [`${waiter} team ${teamId}`, ofTeam, "sandboxes of this team"],
    ];
    const full = places.find(([key, most]) => this.#count(key) >= most);
    if (full) {
      const message = `too many requests wait for ${full[2]} to wake or to be restored; at most ${full[1]}`;
      throw new ClocheError("unavailable", message, { retryAfterSeconds: 1 });
    }
    for (const [key] of places) this.#add(key, 1);
    try {
      return await wait();
    } finally {
      for (const [key] of places) this.#add(key, -1);
    }
  }

  /** How many sandboxes and teams have waiting requests. */
  get size(): number {
    return this.#counts.size;
  }

  #count(key: string): number {
    return this.#counts.get(key) ?? 0;
  }

  #add(key: string, change: number): void {
    const count = this.#count(key) + change;
    if (count === 0) this.#counts.delete(key);
    else this.#counts.set(key, count);
  }
}
