// Live fork: a clone of a running machine, memory and disk of one instant. Forks of one source that are asked for together
// share one snapshot: it is paid for once, and the source pauses once.
import { mkdir, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { runSaga, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk } from "../disk/disk.ts";
import { type SnapshotFiles, snapshotDisk } from "../drivers/driver.ts";
import { requireSpace } from "../pool/reserve.ts";
import { commitStep, createMachine, type OperationParts } from "./create-machine.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";
import { guestHooks, restoreStep } from "./suspend-machine.ts";

export interface ForkContext {
  spec: MachineSpecRecord;
  sourceId: string;
  /** Set once the snapshot is taken. */
  snapshot?: TakenSnapshot;
}

/** A snapshot and what a clone of it inherits. Must be told apart from the source's later state. */
interface TakenSnapshot {
  name: string;
  /** What the agent in the image accepts. */
  controlSecret: string;
  nextControlSecret?: string;
  channel?: 1;
  blockDevice?: string;
}

interface Share {
  taking: Promise<TakenSnapshot>;
  users: number;
}

/** Snapshots under way or in use, by source. */
export class SharedSnapshots {
  readonly #machines: Machines;
  /** Those that have not paused their source yet: a fork may still join. */
  readonly #open = new Map<string, Share>();
  readonly #inUse = new Map<string, Share>();

  constructor(machines: Machines) {
    this.#machines = machines;
  }

  get dir(): string {
    return join(this.#machines.parts.poolDir, "snapshots");
  }

  filesOf(snapshot: TakenSnapshot): SnapshotFiles {
    return { dir: join(this.dir, snapshot.name) };
  }

  /** A snapshot of the source as it is now or a moment later. Each taker must `release` it. */
  async take(sourceId: string): Promise<TakenSnapshot> {
    let share = this.#open.get(sourceId);
    if (!share) {
      const name = Buffer.from(this.#machines.parts.randomBytes(8)).toString("hex");
      share = { taking: this.#machines.queue.run(sourceId, () => this.#snapshot(sourceId, name)), users: 0 };
      this.#open.set(sourceId, share);
      this.#inUse.set(name, share);
    }
    share.users += 1;
    return share.taking;
  }

  /** The last one removes it. Repeatable after a crash, when nobody counts. */
  async release(snapshot: TakenSnapshot): Promise<void> {
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
    for (const snapshot of kept) {
      const share = this.#inUse.get(snapshot.name) ?? { taking: Promise.resolve(snapshot), users: 0 };
      share.users += 1;
      this.#inUse.set(snapshot.name, share);
    }
    for (const name of await readdir(this.dir).catch(() => [])) {
      if (!this.#inUse.has(name)) await rm(join(this.dir, name), { recursive: true, force: true });
    }
  }

  async #snapshot(sourceId: string, name: string): Promise<TakenSnapshot> {
    const machines = this.#machines;
    const into = { dir: join(this.dir, name) };
    const close = (): void => void this.#open.delete(sourceId);
    try {
      const record = machines.require(sourceId, "running");
      await mkdir(into.dir, { recursive: true, mode: 0o700 });
      const hooks = guestHooks(machines, record);
      const { pauseMs } = await machines.driver(record).snapshot(
        machines.files(record),
        into,
        { stop: false },
        {
          ...hooks,
          // Who asks after this instant must see what happened after it: gets a snapshot of its own.
          flush: () => hooks.flush().finally(close),
        },
      );
      const fields = { sandbox_id: sourceId, pause_ms: Math.round(pauseMs) };
      machines.parts.log.info(fields, "snapshot for forks");
      const { controlSecret, nextControlSecret, channel, blockDevice } = record;
      return {
        name,
        controlSecret,
        ...(nextControlSecret === undefined ? {} : { nextControlSecret }),
        ...(channel === undefined ? {} : { channel }),
        ...(blockDevice === undefined ? {} : { blockDevice }),
      };
    } catch (error) {
      this.#inUse.delete(name);
      await rm(into.dir, { recursive: true, force: true });
      throw error;
    } finally {
      close();
    }
  }
}

/** The new machine, assigned and running. With `spec.checkpointId`: from that checkpoint's disk, not from memory. */
export async function forkMachine(
  parts: OperationParts,
  sourceId: string,
  spec: MachineSpecRecord,
): Promise<MachineRecord> {
  const { machines } = parts;
  if (spec.checkpointId !== "") return createMachine(parts, spec);
  const known = machines.find(spec.id);
  if (known?.phase === "running") return known;
  if (known)
    throw new ClocheError("failed_precondition", `machine ${spec.id} exists already and is ${known.phase}`);
  const source = machines.require(sourceId, "running");
  await requireSpace(machines.parts.poolDir);
  // The memory image is of the source's machine: so is all that it was made with.
  const { runtime, template, cpus, memoryMb, diskMb } = source;
  const own: MachineSpecRecord = { ...spec, runtime, template, cpus, memoryMb, diskMb };
  const context: ForkContext = { spec: own, sourceId };
  const saga = { id: spec.id, kind: "fork", begun: [], direction: "forward" as const, context };
  try {
    await runSaga(saga, forkSteps(parts), parts.journal);
  } finally {
    if (context.snapshot) await parts.snapshots.release(context.snapshot);
  }
  return machines.get(spec.id);
}

export function forkSteps({ machines, snapshots }: OperationParts): SagaStep<ForkContext>[] {
  const taken = ({ snapshot }: ForkContext): TakenSnapshot => {
    if (!snapshot) throw new ClocheError("internal", "the snapshot of the source is missing");
    return snapshot;
  };
  return [
    {
      name: "record",
      async do({ spec }) {
        if (!machines.find(spec.id)) await machines.add(spec);
      },
      undo: ({ spec }) => machines.forget(spec.id),
    },
    {
      name: "snapshot",
      async do(context) {
        context.snapshot = await snapshots.take(context.sourceId);
      },
    },
    {
      name: "disk",
      async do(context) {
        const { name: _, ...inherited } = taken(context);
        const record = await machines.change(context.spec.id, inherited);
        const image = snapshotDisk(snapshots.filesOf(taken(context)));
        await cloneDisk(machines.parts.native, image, machines.files(record).diskImage);
      },
    },
    restoreStep(machines, (context) => ({ id: context.spec.id, from: snapshots.filesOf(taken(context)) })),
    {
      name: "assign",
      async do({ spec }) {
        await machines.assign(spec.id, { renewIdentity: true, startServices: false });
      },
    },
    commitStep(machines, ({ spec }) => spec.id),
  ];
}
