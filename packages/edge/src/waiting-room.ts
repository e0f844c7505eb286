import { ClocheError } from "@cloche/protocol";
import type { Route } from "@cloche/protocol/edge";
import type { EdgeLimits } from "./edge-limits.ts";

/** `bearer`: of a token of the sandbox. `visitor`: of a public port, whoever it is. */
export type Waiter = "bearer" | "visitor";

/**
 * Counts the requests that wait for sandboxes to wake or to be restored: by sandbox and by team, visitors apart. So nobody takes
 * another team's places, nor a visitor the owner's.
 */
export class WaitingRoom {
  readonly #limits: EdgeLimits;
  readonly #counts = new Map<string, number>();

  constructor(limits: EdgeLimits) {
    this.#limits = limits;
  }

  /** Does `wait` in a place of that sandbox; throws where none is free. */
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

  /** Sandboxes and teams of which somebody waits. */
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
