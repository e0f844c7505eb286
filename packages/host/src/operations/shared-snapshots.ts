// Snapshots for forks. A suspended source has one already, which is shared by name and not copied. Forks of one source that are asked for together share one snapshot: it is paid for once, and the source
// pauses once. Owns <pool>/snapshots; after a crash, those of forks that go on are in use and the others are removed (`sweep`).
import { link, mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk } from "../disk/disk.ts";
import { ImageMismatchError, snapshotDisk, type SnapshotFiles } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import { snapshotHooks } from "./snapshot-hooks.ts";
import { imageOf } from "./memory-images.ts";
import type { Parts } from "./parts.ts";

/** A snapshot and what a clone of it inherits. Must be told apart from the source's later state. */
export interface TakenSnapshot {
  name: string;
  /** What the agent in the image accepts. */
  controlSecret: string;
  nextControlSecret?: string;
  channel?: 1;
  blockDevice?: string;
  /** The disk alone, of a source that was suspended without its memory: a clone starts cold. */
  isDiskOnly?: true;
}

type SnapshotParts = Parts<"machines" | "queue" | "agents" | "drivers" | "poolDir" | "native" | "log"> & {
  randomBytes: (length: number) => Uint8Array;
};

interface Share {
  taking: Promise<TakenSnapshot>;
  users: number;
}

/** Of the names of those that a group has (group-snapshots.ts): nobody's to count or to sweep here. */
export const groupPrefix = "group-";

/** Snapshots under way or in use, by source. */
export class SharedSnapshots {
  readonly #parts: SnapshotParts;
  /** Those that have not paused their source yet: a fork may still join. */
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

  /** One that is shared with nobody who does not know its name, in the source's turn; and the source as it was then. */
  async takeAs(sourceId: string, name: string): Promise<{ snapshot: TakenSnapshot; source: MachineRecord }> {
    return await this.#parts.queue.run(sourceId, async () => {
      const source = this.#parts.machines.get(sourceId);
      return { snapshot: await this.#snapshot(sourceId, name), source };
    });
  }

  /** The last one removes it. Repeatable after a crash, when nobody counts. */
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

  /** At start, before any fork goes on: those of `kept`, one for each fork that was cut off, are in use; the rest is removed. */
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

  /** `pausing`: who asks after this instant must see what happened after it. */
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

  /** What its own resume would start from. The files of an image never change: they get a second name each. */
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
  const { controlSecret, nextControlSecret, channel, blockDevice } = record;
  return {
    name,
    controlSecret,
    ...(nextControlSecret === undefined ? {} : { nextControlSecret }),
    ...(channel === undefined ? {} : { channel }),
    ...(blockDevice === undefined ? {} : { blockDevice }),
  };
}
