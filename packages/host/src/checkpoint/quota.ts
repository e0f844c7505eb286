// How many checkpoints a team may have, and how large they may be together. Pure but for the counts of those being taken.
import { type CheckpointLimits, ClocheError, humanBytes } from "@cloche/protocol";

export class CheckpointQuota {
  readonly #limits: CheckpointLimits;
  readonly #list: (teamId: string) => readonly { size_bytes: number }[];
  readonly #underWay = new Map<string, number>();

  constructor(
    limits: CheckpointLimits,
    list: (teamId: string) => readonly { readonly size_bytes: number }[],
  ) {
    this.#limits = limits;
    this.#list = list;
  }

  /** Runs `take` where the team may have one more; throws resource_exhausted (429) where not. */
  async within<T>(teamId: string, take: () => Promise<T>): Promise<T> {
    const { count, bytes } = this.#limits;
    const known = this.#list(teamId);
    const underWay = this.#underWay.get(teamId) ?? 0;
    if (count > 0 && known.length + underWay >= count)
      throw exhausted(`the team has ${known.length + underWay} checkpoints; at most ${count} are allowed`);
    const total = known.reduce((sum, one) => sum + one.size_bytes, 0);
    if (bytes > 0 && total >= bytes)
      throw exhausted(
        `the team's checkpoints take ${humanBytes(total)}; a new one may be made below ${humanBytes(bytes)}`,
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
