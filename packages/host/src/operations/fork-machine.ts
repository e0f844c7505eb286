/**
 * Live fork: clones a machine with the memory and disk of one instant. A suspended source is not woken: its image is
 * cloned. If it was suspended without memory, its disk is cloned and the clone starts cold.
 */
import { runSaga, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk } from "../disk/disk.ts";
import { snapshotDisk } from "../drivers/driver.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { createMachine } from "./create-machine.ts";
import { withoutMemory, withServices } from "./cold-start-messages.ts";
import { durableChange, machineStep, restoreStep } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { TakenSnapshot } from "./shared-snapshots.ts";

export interface ForkContext {
  spec: MachineSpecRecord;
  sourceId: string;
  /** All forks of a group share one snapshot (group-snapshots.ts). */
  group?: string;
  /** Set once the snapshot is taken. */
  snapshot?: TakenSnapshot;
  /** Only for a clone that started cold: which services that ran before were started, and which failed. */
  services?: { started: string[]; failed: string[] };
}

/** Answers the new machine, assigned and running. `spec.checkpointId`: clone that checkpoint's disk, no memory. `group`: may be empty. */
export async function forkMachine(
  parts: OperationParts,
  sourceId: string,
  spec: MachineSpecRecord,
  group = "",
): Promise<MachineRecord> {
  const { machines, groups } = parts;
  if (spec.checkpointId !== "") return createMachine(parts, spec);
  const known = machines.find(spec.id);
  if (known?.phase === "running") return known;
  if (known)
    throw new ClocheError("failed_precondition", `machine ${spec.id} exists already and is ${known.phase}`);
  const sourceOfGroup = group === "" ? undefined : await groups.sourceOf(group);
  const source = sourceOfGroup ?? machines.require(sourceId, "running", "suspended");
  await requireSpace(parts.poolDir);
  // A memory image fits only a machine of the source's shape, so the clone takes the source's runtime, template and sizes.
  const { runtime, template, cpus, memoryMb, diskMb } = source;
  const own: MachineSpecRecord = { ...spec, runtime, template, cpus, memoryMb, diskMb };
  const context: ForkContext = { spec: own, sourceId, ...(group !== "" && { group }) };
  const saga = { id: spec.id, kind: "fork", begun: [], direction: "forward" as const, context };
  try {
    await runSaga(saga, forkSteps(parts), parts.journal);
  } finally {
    if (context.snapshot) await parts.snapshots.release(context.snapshot);
  }
  return machines.get(spec.id);
}

const coldStartMessage = (services: { started: string[]; failed: string[] }): string =>
  withServices(withoutMemory("its source was suspended without it"), services);

export function forkSteps(parts: OperationParts): SagaStep<ForkContext>[] {
  const { machines, agents, snapshots, groups, native } = parts;
  const taken = ({ snapshot }: ForkContext): TakenSnapshot => {
    if (!snapshot) throw new ClocheError("internal", "the snapshot of the source is missing");
    return snapshot;
  };
  const isCold = (context: ForkContext): boolean => taken(context).isDiskOnly === true;
  const boot = machineStep<ForkContext>(parts, ({ spec }) => spec.id);
  const restore = restoreStep<ForkContext>(parts, (context) => ({
    id: context.spec.id,
    from: snapshots.filesOf(taken(context)),
  }));
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
        const { group, sourceId } = context;
        context.snapshot = await (group === undefined
          ? snapshots.take(sourceId)
          : groups.take(group, sourceId));
      },
    },
    {
      name: "disk",
      async do(context) {
        const { name: _, isDiskOnly: __, ...inherited } = taken(context);
        const record = await machines.change(context.spec.id, inherited);
        const image = snapshotDisk(snapshots.filesOf(taken(context)));
        await cloneDisk(native, image, machines.files(record).diskImage, { durable: false });
      },
    },
    // Gives the clone its address.
    {
      ...restore,
      do: (context) => (isCold(context) ? boot : restore).do(context),
    },
    {
      name: "assign",
      async do(context) {
        const startServices = isCold(context);
        const services = await agents.assign(context.spec.id, { renewIdentity: true, startServices });
        if (startServices) context.services = services;
      },
    },
    {
      name: "commit",
      async do(context) {
        const errorMessage = context.services === undefined ? "" : coldStartMessage(context.services);
        await machines.move(context.spec.id, "started", { errorMessage }, durableChange);
      },
    },
  ];
}
