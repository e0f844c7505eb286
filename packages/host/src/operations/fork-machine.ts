// Live fork: a clone of a machine, memory and disk of one instant. A suspended source is not woken: its image is cloned.
import { runSaga, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk } from "../disk/disk.ts";
import { snapshotDisk } from "../drivers/driver.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { createMachine } from "./create-machine.ts";
import { commitStep, restoreStep } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { TakenSnapshot } from "./shared-snapshots.ts";

export interface ForkContext {
  spec: MachineSpecRecord;
  sourceId: string;
  /** Set once the snapshot is taken. */
  snapshot?: TakenSnapshot;
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
  const source = machines.require(sourceId, "running", "suspended");
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
