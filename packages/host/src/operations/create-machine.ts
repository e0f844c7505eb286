/** Create: makes a new machine from a template or from a checkpoint's disk. */
import { runSaga, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk, growDisk, growImage } from "../disk/disk.ts";
import type { RunningMachine } from "../drivers/driver.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { commit, durableChange, machineStep, noteRunning, stopMachine } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { Parts } from "./parts.ts";
import { startMachine } from "./start-machine.ts";

export interface CreateContext {
  spec: MachineSpecRecord;
  /** The machine was made ahead, with its disk. */
  claimed?: boolean;
  /** The assignment that the agent of a machine made ahead has already received. */
  assignment?: string;
}

/** The host never reads a disk that a VM may have written: the guest grows that file system when it attaches the disk. */
const grow = { gvisor: growDisk, qemu: growImage };

/** Answers a new machine, assigned and running. If the id exists: a running machine is answered, a stopped one is started. */
export async function createMachine(parts: OperationParts, spec: MachineSpecRecord): Promise<MachineRecord> {
  const known = parts.machines.find(spec.id);
  if (known?.phase === "running") return known;
  if (known?.phase === "stopped") return startMachine(parts, spec.id);
  if (known)
    throw new ClocheError("failed_precondition", `machine ${spec.id} exists already and is ${known.phase}`);
  parts.drivers.of(spec);
  await requireSpace(parts.poolDir);
  const context: CreateContext = { spec };
  const record = { id: spec.id, kind: "create", begun: [], direction: "forward" as const, context };
  await runSaga(record, createSteps(parts), parts.journal);
  return parts.machines.get(spec.id);
}

export function createSteps(parts: OperationParts): SagaStep<CreateContext>[] {
  const { machines, agents, drivers, seeds, native } = parts;
  return [
    {
      name: "record",
      async do({ spec }) {
        if (!machines.find(spec.id)) await machines.add(spec);
      },
      undo: ({ spec }) => machines.forget(spec.id),
    },
    {
      name: "disk",
      async do(context) {
        const { spec } = context;
        delete context.assignment;
        const ready = spec.checkpointId === "" ? await claimReady(parts, spec.id) : undefined;
        context.claimed = ready !== undefined;
        if (ready?.assignment !== undefined) context.assignment = ready.assignment;
        if (context.claimed) return;
        const record = machines.get(spec.id);
        const files = machines.files(record);
        if (spec.checkpointId === "" && (await drivers.of(record).ready?.freshDisk(files, record))) return;
        await seeds.withSeed(spec, async (image, sizeMb) => {
          await cloneDisk(native, image, files.diskImage, { durable: false });
          if (sizeMb < spec.diskMb) await grow[spec.runtime](files.diskImage, spec.diskMb);
          // A disk is never smaller than the image it was cloned from.
          else if (sizeMb > spec.diskMb) await machines.change(spec.id, { diskMb: sizeMb });
        });
      },
      undo: ({ spec }) => stopMachine(parts, spec.id),
    },
    unless(
      ({ claimed }) => claimed === true,
      machineStep(parts, ({ spec }) => spec.id),
    ),
    {
      name: "assign",
      // The agent starts the services that ran at checkpoint time; a template has none.
      async do({ spec, assignment }) {
        if (assignment === agents.assignmentOf(machines.get(spec.id))) return;
        await agents.assign(spec.id, { renewIdentity: true, startServices: true });
      },
    },
    {
      name: "commit",
      // A machine made ahead has been durable since it was claimed.
      do: ({ spec, claimed }) => commit(parts, spec.id, { durable: claimed !== true }),
    },
  ];
}

/** Claims a machine made ahead, which becomes this one. The record is written to the disk while that machine wakes up. */
async function claimReady(
  parts: Parts<"machines" | "drivers">,
  id: string,
): Promise<RunningMachine | undefined> {
  const { machines, drivers } = parts;
  const record = machines.get(id);
  return await drivers
    .toRun(record)
    .ready?.claim(machines.files(record), record, (running) =>
      noteRunning(parts, id, running, durableChange),
    );
}

/** The step, left out if `skip` says so. Its undo runs in either case. */
const unless = <Context>(
  skip: (context: Context) => boolean,
  step: SagaStep<Context>,
): SagaStep<Context> => ({
  ...step,
  do: async (context) => (skip(context) ? undefined : step.do(context)),
});
