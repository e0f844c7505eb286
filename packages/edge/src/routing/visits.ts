/**
 * Limits the requests of visitors of public ports that are under way, WebSockets included: each may hold a connection
 * of the edge for as long as the sandbox likes. Counted for a sandbox and its team, apart from requests with a token.
 */
import { ClocheError } from "@cloche/protocol";
import type { EdgeLimits } from "../edge-limits.ts";
import type { Exchange } from "../exchange/exchange.ts";

export class Visits {
  readonly #limits: Pick<EdgeLimits, "visitsOfSandbox" | "visitsOfTeam">;
  readonly #counts = new Map<string, number>();

  constructor(limits: Pick<EdgeLimits, "visitsOfSandbox" | "visitsOfTeam">) {
    this.#limits = limits;
  }

  /** Counts the exchange until it has ended. Throws `resource_exhausted` when there are too many. */
  enter(exchange: Exchange, teamId: string): void {
    const { visitsOfSandbox, visitsOfTeam } = this.#limits;
    const scopes: [string, number][] = [
      [`sandbox ${exchange.sandboxId}`, visitsOfSandbox],
      [`team ${teamId}`, visitsOfTeam],
    ];
    if (scopes.some(([key, most]) => this.#of(key) >= most))
      throw new ClocheError(
        "resource_exhausted",
        "too many visitors are at ports of this sandbox or its team",
        {
          resource: "quota",
          retryAfterSeconds: 1,
        },
      );
    for (const [key] of scopes) this.#counts.set(key, this.#of(key) + 1);
    exchange.whenEnded(() => {
      for (const [key] of scopes) {
        if (this.#of(key) > 1) this.#counts.set(key, this.#of(key) - 1);
        else this.#counts.delete(key);
      }
    });
  }

  #of(key: string): number {
    return this.#counts.get(key) ?? 0;
  }
}
