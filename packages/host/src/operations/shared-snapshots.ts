/**
 * Snapshots for forks. Concurrent forks of one source share one snapshot, so that the source pauses once. A suspended source already
 * has a snapshot, whose files are linked and not copied. Owns <pool>/snapshots. After a crash, snapshots of unfinished forks stay
 * in use and the others are removed (`sweep`).
 */
import { link, mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk } from "../disk/disk.ts";
import { ImageMismatchError, snapshotDisk, type SnapshotFiles } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import { snapshotHooks } from "./snapshot-hooks.ts";
import { imageOf } from "./memory-images.ts";
import type { Parts } from "./parts.ts";

/** A snapshot and the fields that a clone inherits, as they were at that instant: the source's record may change afterwards. */
export interface TakenSnapshot {
  name: string;
  /** The secret that the agent in the image accepts. */
  controlSecret: string;
  nextControlSecret?: string;
  blockDevice?: string;
  /** The source was suspended without memory: the snapshot is its disk alone, and a clone starts cold. */
  isDiskOnly?: true;
}

type SnapshotParts = Parts<"machines" | "queue" | "agents" | "drivers" | "poolDir" | "native" | "log"> & {
  randomBytes: (length: number) => Uint8Array;
};

interface Share {
  taking: Promise<TakenSnapshot>;
  users: number;
}

/** Prefix of the names of group snapshots. group-snapshots.ts owns these; they are neither counted nor swept here. */
export const groupPrefix = "group-";

/** Snapshots under way or in use, by source. */
export class SharedSnapshots {
  readonly #parts: SnapshotParts;
  /** Snapshots that have not paused their source yet: a fork may still join. */
  readonly #open = new Map<string, Share>();
  readonly #inUse = new Map<string, Share>();

  constructor(parts: SnapshotParts) {
    this.#parts = parts;
  }

  get dir(): string {
    return join(this.#parts.poolDir, "snapshots");
  }

  filesOf(snapshot: TakenSnapshot): SnapshotFiles {
    return { dir: join(this.dir, snapshot.name) };
  }

  /** A snapshot of the source as it is now or a moment later. Each taker must `release` it. */
  async take(sourceId: string): Promise<TakenSnapshot> {
    let share = this.#open.get(sourceId);
    if (!share) {
      const name = Buffer.from(this.#parts.randomBytes(8)).toString("hex");
      const close = (): void => void this.#open.delete(sourceId);
      const taking = this.#parts.queue.run(sourceId, () =>
        this.#snapshot(sourceId, name, close).finally(close),
      );
      share = { taking, users: 0 };
      this.#open.set(sourceId, share);
      this.#inUse.set(name, share);
    }
    share.users += 1;
    return share.taking;
  }

  /** Takes a snapshot under a name that the caller gives, shared with no other fork. Answers the source's record at that time too. */
  async takeAs(sourceId: string, name: string): Promise<{ snapshot: TakenSnapshot; source: MachineRecord }> {
    return await this.#parts.queue.run(sourceId, async () => {
      const source = this.#parts.machines.get(sourceId);
      return { snapshot: await this.#snapshot(sourceId, name), source };
    });
  }

  /** The last user removes the snapshot. Repeatable after a crash, when there is no count. */
  async release(snapshot: TakenSnapshot): Promise<void> {
    if (snapshot.name.startsWith(groupPrefix)) return;
    const share = this.#inUse.get(snapshot.name);
    if (share) {
      share.users -= 1;
      if (share.users > 0) return;
      this.#inUse.delete(snapshot.name);
    }
    await rm(this.filesOf(snapshot).dir, { recursive: true, force: true });
  }

  /** At start, before any fork continues: marks `kept` (one entry for each cut-off fork) as in use and removes the rest. */
  async sweep(kept: readonly TakenSnapshot[]): Promise<void> {
    for (const snapshot of kept.filter(({ name }) => !name.startsWith(groupPrefix))) {
      const share = this.#inUse.get(snapshot.name) ?? { taking: Promise.resolve(snapshot), users: 0 };
      share.users += 1;
      this.#inUse.set(snapshot.name, share);
    }
    for (const name of await readdir(this.dir).catch(() => [])) {
      if (!this.#inUse.has(name) && !name.startsWith(groupPrefix))
        await rm(join(this.dir, name), { recursive: true, force: true });
    }
  }

  /** `pausing`: called when no fork may join any more: a later fork must see what happened after this instant. */
  async #snapshot(
    sourceId: string,
    name: string,
    pausing: () => void = () => undefined,
  ): Promise<TakenSnapshot> {
    const { machines, drivers, log } = this.#parts;
    const into = { dir: join(this.dir, name) };
    try {
      const record = machines.require(sourceId, "running", "suspended");
      await mkdir(into.dir, { recursive: true, mode: 0o700 });
      if (record.phase === "suspended") return await this.#ofSuspended(record, into, name);
      const hooks = snapshotHooks(this.#parts, record);
      const { pauseMs } = await drivers.of(record).snapshot(
        machines.files(record),
        into,
        { stop: false },
        {
          ...hooks,
          flush: () => hooks.flush().finally(pausing),
        },
      );
      const fields = { sandbox_id: sourceId, pause_ms: Math.round(pauseMs) };
      log.info(fields, "snapshot for forks");
      return inheritedFrom(record, name);
    } catch (error) {
      this.#inUse.delete(name);
      await rm(into.dir, { recursive: true, force: true });
      throw error;
    }
  }

  /** The image that the source's own resume would use. Its files never change, so hard links are enough. */
  async #ofSuspended(record: MachineRecord, into: SnapshotFiles, name: string): Promise<TakenSnapshot> {
    const { machines, drivers, native } = this.#parts;
    if (record.snapshot === undefined) {
      await cloneDisk(native, machines.files(record).diskImage, snapshotDisk(into));
      return { name, controlSecret: "", isDiskOnly: true };
    }
    const image = imageOf(this.#parts, record.id);
    try {
      await drivers.of(record).requireRestorable(image);
    } catch (error) {
      if (!(error instanceof ImageMismatchError)) throw error;
      throw new ClocheError(
        "failed_precondition",
        `the source's memory cannot be cloned: ${error.message}; resume it first, which starts it from its disk`,
        { cause: error },
      );
    }
    for (const file of await readdir(image.dir)) await link(join(image.dir, file), join(into.dir, file));
    const { nextControlSecret: _, ...saved } = record;
    return inheritedFrom({ ...saved, controlSecret: record.snapshotSecret ?? record.controlSecret }, name);
  }
}

function inheritedFrom(record: MachineRecord, name: string): TakenSnapshot {
  const { controlSecret, nextControlSecret, blockDevice } = record;
  return {
    name,
    controlSecret,
    ...(nextControlSecret === undefined ? {} : { nextControlSecret }),
    ...(blockDevice === undefined ? {} : { blockDevice }),
  };
}
