/**
 * Snapshots of groups of forks. Every fork of a group clones the same instant, however late it comes: the first fork takes the
 * snapshot. Owns <pool>/snapshots/group-<id>, complete once it has `taken.json`. A restart keeps it, because the gateway
 * continues with the remaining forks.
 *
 *   (none) ──first fork──▶ taking ──taken.json──▶ taken ──end, or an hour──▶ (none)
 */
import { readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, readJsonFile, writeDurably } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { MachineRecord } from "../machines/machine-record.ts";
import { groupPrefix, type SharedSnapshots, type TakenSnapshot } from "./shared-snapshots.ts";

/** The shape of the source, which every clone takes. Kept here because the source may be gone by then. */
export type SourceShape = Pick<MachineRecord, "runtime" | "template" | "cpus" | "memoryMb" | "diskMb">;

interface GroupSnapshot {
  snapshot: TakenSnapshot;
  source: SourceShape;
}

/** A gateway that was restarted continues a group within minutes, well before this. */
const keptMs = 3_600_000;
const file = "taken.json";

export class GroupSnapshots {
  readonly #clock: Clock;
  readonly #snapshots: SharedSnapshots;
  readonly #taking = new Map<string, Promise<GroupSnapshot>>();

  constructor(snapshots: SharedSnapshots, clock: Clock) {
    this.#clock = clock;
    this.#snapshots = snapshots;
  }

  /** The group's snapshot, taken now if there is none yet. */
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

  /** Removes group snapshots that no gateway ended in time. */
  async sweep(): Promise<void> {
    const endMs = this.#clock.nowMs() - keptMs;
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
    return (await readJsonFile(join(this.#dirOf(group), file))) as GroupSnapshot | undefined;
  }

  async #take(group: string, sourceId: string): Promise<GroupSnapshot> {
    await this.sweep();
    // Remove a snapshot that a crash cut off.
    await this.end(group);
    const dir = this.#dirOf(group);
    const { snapshot, source } = await this.#snapshots.takeAs(sourceId, `${groupPrefix}${group}`);
    const { runtime, template, cpus, memoryMb, diskMb } = source;
    const taken = { snapshot, source: { runtime, template, cpus, memoryMb, diskMb } };
    try {
      await writeDurably(join(dir, file), JSON.stringify(taken));
    } catch (error) {
      await this.end(group);
      throw error;
    }
    return taken;
  }
}
