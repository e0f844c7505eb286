/**
 * Names of a cluster's storage for tests of hosts, in memory; in the gateways it is packages/gateway/src/storage.
 */
import { ClocheError, isBehind } from "@cloche/protocol";
import type { CheckpointNames, Hold, NamedCheckpoint, SweepCalls } from "../checkpoint/checkpoint-names.ts";
import type { PackReference } from "../checkpoint/manifest.ts";

const idsOf = (packs: readonly PackReference[]): string[] => packs.map(({ id }) => id);

export class FakeNames implements CheckpointNames, SweepCalls {
  /** Packs by the name that holds them. */
  readonly holds = new Map<string, Set<string>>();
  readonly checkpoints = new Map<string, NamedCheckpoint>();

  async hold({ name, inherited, own = [] }: Hold): Promise<void> {
    const named = new Set([...this.holds.values()].flatMap((packs) => [...packs]));
    if (inherited.some(({ id }) => !named.has(id)))
      throw new ClocheError("failed_precondition", "a pack is named by nobody any more");
    this.holds.set(name, new Set([...(this.holds.get(name) ?? []), ...idsOf(inherited), ...idsOf(own)]));
  }

  async release(name: string): Promise<void> {
    if (!this.checkpoints.has(name.slice("checkpoints/".length))) this.holds.delete(name);
  }

  async totals(teamId: string): Promise<{ count: number; bytes: number }> {
    const mine = [...this.checkpoints.values()].filter(({ header }) => header.team_id === teamId);
    return { count: mine.length, bytes: mine.reduce((sum, { header }) => sum + header.size_bytes, 0) };
  }

  async name(checkpoint: NamedCheckpoint): Promise<void> {
    const { id } = checkpoint.header;
    const name = `checkpoints/${id}`;
    if (this.checkpoints.has(id)) return;
    if (!this.holds.has(name)) throw new ClocheError("failed_precondition", "it is not held");
    this.holds.set(name, new Set(idsOf(checkpoint.packs)));
    this.checkpoints.set(id, checkpoint);
  }

  async find(teamId: string, id: string): Promise<NamedCheckpoint | undefined> {
    const known = this.checkpoints.get(id);
    return known?.header.team_id === teamId ? known : undefined;
  }

  async list(
    teamId: string,
    sandboxId: string,
    { limit, after }: Parameters<CheckpointNames["list"]>[2],
  ): ReturnType<CheckpointNames["list"]> {
    const all = [...this.checkpoints.values()]
      .filter(
        ({ header }) => header.team_id === teamId && (sandboxId === "" || header.sandbox_id === sandboxId),
      )
      .filter(({ header }) => after === undefined || isBehind(header, after))
      .toSorted(({ header: a }, { header: b }) => (isBehind(a, b) ? 1 : -1));
    const checkpoints = all.slice(0, limit);
    return { checkpoints, next: all.length > limit ? checkpoints.at(-1)?.header : undefined };
  }

  /** There is no garbage here: tests of the database cover it (tests/contracts). */
  async claim(): Promise<undefined> {}
  async unnamed(): Promise<string[]> {
    return [];
  }
  async swept(): Promise<void> {}

  async drop(teamId: string, id: string): Promise<number> {
    const known = await this.find(teamId, id);
    if (known === undefined) return 0;
    this.checkpoints.delete(id);
    this.holds.delete(`checkpoints/${id}`);
    const kept = new Set([...this.holds.values()].flatMap((packs) => [...packs]));
    return known.packs.reduce((sum, pack) => sum + (kept.has(pack.id) ? 0 : pack.bytes), 0);
  }
}
