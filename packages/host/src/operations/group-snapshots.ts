// Snapshots of groups of forks: however far apart the forks of a group come, each is a clone of the one instant at which the snapshot
// for the first of them was taken. Owns <pool>/snapshots/group-<id>, complete once it has `taken.json`; a restart keeps it, for the
// gateway goes on with the forks that are left.
//
//   (none) ──first fork──▶ taking ──taken.json──▶ taken ──end, or an hour──▶ (none)
import { readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, readJsonFile, writeDurably } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { MachineRecord } from "../machines/machine-record.ts";
import { groupPrefix, type SharedSnapshots, type TakenSnapshot } from "./shared-snapshots.ts";

/** What its source was made with, as every clone is: the source may be gone by then. */
export type SourceShape = Pick<MachineRecord, "runtime" | "template" | "cpus" | "memoryMb" | "diskMb">;

interface GroupSnapshot {
  snapshot: TakenSnapshot;
  source: SourceShape;
}

/** A gateway that goes on with a group does so within minutes. */
const KEPT_MS = 3_600_000;
const FILE = "taken.json";

export class GroupSnapshots {
  readonly #clock: Clock;
  readonly #snapshots: SharedSnapshots;
  readonly #taking = new Map<string, Promise<GroupSnapshot>>();

  constructor(snapshots: SharedSnapshots, clock: Clock) {
    this.#clock = clock;
    this.#snapshots = snapshots;
  }

  /** The group's, taken now where there is none yet. */
  async take(group: string, sourceId: string): Promise<TakenSnapshot> {
    const known = this.#taking.get(group);
    if (known !== undefined) return (await known).snapshot;
    const taking = this.#find(group).then((found) => found ?? this.#take(group, sourceId));
    this.#taking.set(group, taking);
    try {
      return (await taking).snapshot;
    } finally {
      this.#taking.delete(group);
    }
  }

  /** Undefined: there is no snapshot of the group yet. */
  async sourceOf(group: string): Promise<SourceShape | undefined> {
    return (await this.#find(group))?.source;
  }

  async end(group: string): Promise<void> {
    await rm(this.#dirOf(group), { recursive: true, force: true });
  }

  /** Removes those that nobody ended in time. */
  async sweep(): Promise<void> {
    const endMs = this.#clock.nowMs() - KEPT_MS;
    for (const name of await readdir(this.#snapshots.dir).catch(() => [])) {
      if (!name.startsWith(groupPrefix)) continue;
      const dir = join(this.#snapshots.dir, name);
      const { mtimeMs } = await stat(dir).catch(() => ({ mtimeMs: Number.POSITIVE_INFINITY }));
      if (mtimeMs < endMs) await rm(dir, { recursive: true, force: true });
    }
  }

  #dirOf(group: string): string {
    if (/^[0-9a-f]{20}$/.test(group)) return join(this.#snapshots.dir, `${groupPrefix}${group}`);
    throw new ClocheError(
      "invalid_argument",
      `group is ${JSON.stringify(group)}; it must be 20 hexadecimal digits`,
    );
  }

  async #find(group: string): Promise<GroupSnapshot | undefined> {
    return (await readJsonFile(join(this.#dirOf(group), FILE))) as GroupSnapshot | undefined;
  }

  async #take(group: string, sourceId: string): Promise<GroupSnapshot> {
    await this.sweep();
    // One that a crash cut off.
    await this.end(group);
    const dir = this.#dirOf(group);
    const { snapshot, source } = await this.#snapshots.takeAs(sourceId, `${groupPrefix}${group}`);
    const { runtime, template, cpus, memoryMb, diskMb } = source;
    const taken = { snapshot, source: { runtime, template, cpus, memoryMb, diskMb } };
    try {
      await writeDurably(join(dir, FILE), JSON.stringify(taken));
    } catch (error) {
      await this.end(group);
      throw error;
    }
    return taken;
  }
}
