/**
 * Places that sandboxes share, bounded for a sandbox, for a team and in all. A team at its bound takes no place of another:
 * when all are taken, a team with few of its own still gets one, so there are at most `all` and `always` for each team.
 */

export interface PlaceBounds {
  readonly ofSlot: number;
  readonly ofTeam: number;
  readonly all: number;
  /** A team with fewer places gets one in any case. */
  readonly always: number;
}

export class SharedPlaces {
  readonly #bounds: PlaceBounds;
  readonly #taken = new Map<string, number>();
  #all = 0;

  constructor(bounds: PlaceBounds) {
    this.#bounds = bounds;
  }

  /** Takes a place for a slot of a team. Undefined: none is free for it; else call it to give the place back. */
  take(slot: number, team: string): (() => void) | undefined {
    const { ofSlot, ofTeam, all, always } = this.#bounds;
    const owners = [`slot ${slot}`, `team ${team}`] as const;
    const [bySlot, byTeam] = owners.map((owner) => this.#taken.get(owner) ?? 0) as [number, number];
    if (bySlot >= ofSlot || byTeam >= ofTeam || (this.#all >= all && byTeam >= always)) return undefined;
    for (const owner of owners) this.#count(owner, 1);
    this.#all += 1;
    return () => {
      for (const owner of owners) this.#count(owner, -1);
      this.#all -= 1;
    };
  }

  #count(owner: string, by: number): void {
    const count = (this.#taken.get(owner) ?? 0) + by;
    if (count === 0) this.#taken.delete(owner);
    else this.#taken.set(owner, count);
  }
}
