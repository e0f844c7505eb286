// Create: a new machine, from a template or from a checkpoint's disk.
import { runSaga, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk, growDisk, growImage } from "../disk/disk.ts";
import type { RunningMachine } from "../drivers/driver.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { commit, DURABLE, machineStep, noteRunning, stopMachine } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { Parts } from "./parts.ts";
import { startMachine } from "./start-machine.ts";

export interface CreateContext {
  spec: MachineSpecRecord;
  /** It is one that was made ahead, with its disk. */
  claimed?: boolean;
  /** What its agent was told ahead. */
  assignment?: string;
}

/** A disk that a VM may have written is never read by the host: the guest makes the file system larger when it takes it. */
const grow = { gvisor: growDisk, qemu: growImage };

/** A new machine, assigned and running. A machine of that id that runs is the answer; one that is stopped starts. */
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
          await cloneDisk(native, image, files.diskImage);
          if (sizeMb < spec.diskMb) await grow[spec.runtime](files.diskImage, spec.diskMb);
          // A disk is never made smaller than what it was seeded from.
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
      // What the checkpoint says should run is started; a template has no services.
      async do({ spec, assignment }) {
        if (assignment === agents.assignmentOf(machines.get(spec.id))) return;
        await agents.assign(spec.id, { renewIdentity: true, startServices: true });
      },
    },
    {
      name: "commit",
      // One that was made ahead is durable since it was claimed.
      do: ({ spec, claimed }) => commit(parts, spec.id, { durable: claimed !== true }),
    },
  ];
}

/** A machine made ahead, which becomes this one. It is waited for the disk while that machine wakes up. */
async function claimReady(
  parts: Parts<"machines" | "drivers">,
  id: string,
): Promise<RunningMachine | undefined> {
  const { machines, drivers } = parts;
  const record = machines.get(id);
  return await drivers
    .toRun(record)
    .ready?.claim(machines.files(record), record, (running) => noteRunning(parts, id, running, DURABLE));
}

/** The step, left out where `skip` says so. What it may have done is undone all the same. */
const unless = <Context>(
  skip: (context: Context) => boolean,
  step: SagaStep<Context>,
): SagaStep<Context> => ({
  ...step,
  do: async (context) => (skip(context) ? undefined : step.do(context)),
});
