import { ClocheError } from "@cloche/protocol";
import { Turns } from "./turns.ts";

interface OfTeam {
  readonly turns: Turns;
  /** Callers inside or in line. */
  callers: number;
}

/**
 * Turns for each team: of one team at most `most` callers are inside at once, and the others wait in line. For work
 * that takes the process's thread or memory, so that a team with much of it delays itself only. Before each
 * caller's work the event loop turns.
 */
export class TeamTurns {
  readonly #most: number;
  readonly #teams = new Map<string, OfTeam>();

  constructor(most: number) {
    this.#most = most;
  }

  /**
   * Resolves when it is the caller's turn, with a function that ends the turn and may be called twice. Throws
   * `canceled` when the caller has left by then.
   */
  async enter(teamId: string, left: AbortSignal): Promise<() => void> {
    const team = this.#teams.get(teamId) ?? { turns: new Turns(this.#most), callers: 0 };
    this.#teams.set(teamId, team);
    team.callers += 1;
    const endTurn = await team.turns.enter();
    // The work may not wait for anything itself, as reads of SQLite: without this, one would follow the other before
    // anything of another team is read.
    await new Promise((resolve) => void setImmediate(resolve));
    let isOver = false;
    const leave = (): void => {
      if (isOver) return;
      isOver = true;
      endTurn();
      team.callers -= 1;
      if (team.callers === 0) this.#teams.delete(teamId);
    };
    if (!left.aborted) return leave;
    leave();
    throw new ClocheError("canceled", "the client went away");
  }
}
