/**
 * Turns of calls that read much: lists, audit entries, usage. They share the process's thread and its database, so a
 * team has a few of them in work at once, and the others wait in line: a read of another team is soon answered. How
 * many wait is bounded by the calls that a team may have under way (call-limits.ts). In memory, of one gateway.
 */
import { Turns } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { SandboxService } from "@cloche/protocol/public";
import { gatewayLimits } from "../limits.ts";

interface TeamTurns {
  readonly turns: Turns;
  /** Reads in work or in line. */
  reads: number;
}

export class ReadTurns {
  readonly #teams = new Map<string, TeamTurns>();

  /**
   * Resolves when it is the team's turn to read, with a function that ends the turn and may be called twice. Throws
   * `canceled` when the caller has left by then.
   */
  async enter(teamId: string, left: AbortSignal): Promise<() => void> {
    const team = this.#teams.get(teamId) ?? { turns: new Turns(gatewayLimits.readsOfTeam), reads: 0 };
    this.#teams.set(teamId, team);
    team.reads += 1;
    const endTurn = await team.turns.enter();
    let hasLeft = false;
    const leave = (): void => {
      if (hasLeft) return;
      hasLeft = true;
      endTurn();
      team.reads -= 1;
      if (team.reads === 0) this.#teams.delete(teamId);
    };
    if (!left.aborted) return leave;
    leave();
    throw new ClocheError("canceled", "the client went away");
  }
}

/** Whether a call reads much. A short page waits for nobody: other parts of the service check keys with one. */
export function readsMuch(method: string, message: object): boolean {
  if (!method.startsWith("List") && method !== SandboxService.method.getUsage.name) return false;
  const { pageSize = 0 } = message as { pageSize?: number };
  return pageSize < 1 || pageSize > gatewayLimits.shortPage;
}
