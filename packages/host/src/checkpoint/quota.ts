/**
 * Limits the number and total size of a team's checkpoints. Owns only the counts of checkpoints being taken, in memory.
 */
import { type CheckpointLimits, ClocheError, humanBytes } from "@cloche/protocol";

/** Count and size of a team's checkpoints; in a cluster on all hosts. */
export type TeamTotals = (teamId: string) => Promise<{ count: number; bytes: number }>;

export class CheckpointQuota {
  readonly #limits: CheckpointLimits;
  readonly #totals: TeamTotals;
  readonly #underWay = new Map<string, number>();

  constructor(limits: CheckpointLimits, totals: TeamTotals) {
    this.#limits = limits;
    this.#totals = totals;
  }

  /** Runs `take` if the team may have one more checkpoint; otherwise throws resource_exhausted (429). */
  async within<T>(teamId: string, take: () => Promise<T>): Promise<T> {
    const { count, bytes } = this.#limits;
    const known = await this.#totals(teamId);
    const underWay = this.#underWay.get(teamId) ?? 0;
    if (count > 0 && known.count + underWay >= count)
      throw exhausted(`the team has ${known.count + underWay} checkpoints; at most ${count} are allowed`);
    if (bytes > 0 && known.bytes >= bytes)
      throw exhausted(
        `the team's checkpoints take ${humanBytes(known.bytes)}; a new one may be made below ${humanBytes(bytes)}`,
      );
    this.#underWay.set(teamId, underWay + 1);
    try {
      return await take();
    } finally {
      const left = (this.#underWay.get(teamId) ?? 1) - 1;
      if (left > 0) this.#underWay.set(teamId, left);
      else this.#underWay.delete(teamId);
    }
  }
}

const exhausted = (message: string): ClocheError =>
  new ClocheError("resource_exhausted", `${message}: delete some first`, { resource: "quota" });
