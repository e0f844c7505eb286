// Create, cold start and destroy of a machine: sagas, whose steps can be repeated and undone.
import { rm } from "node:fs/promises";
import { runSaga, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk, growDisk, growImage } from "../disk/disk.ts";
import type { RunningMachine } from "../drivers/driver.ts";
import { requireSpace } from "../pool/reserve.ts";
import { withServices } from "./cold-start-words.ts";
import type { DiskSeeds } from "./disk-seeds.ts";
import type { SharedSnapshots } from "./fork-machine.ts";
import type { HostJournal } from "./journal.ts";
import type { MachineRecord, MachineSpecRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";

export interface CreateContext {
  spec: MachineSpecRecord;
  /** It is one that was made ahead, with its disk. */
  claimed?: boolean;
  /** What its agent was told ahead. */
  assignment?: string;
}
export interface StartContext {
  id: string;
  /** What its record says of its end; empty: nothing is wrong. Absent in what an earlier release began. */
  words?: string;
  /** Those that ran before, once they were started. */
  services?: { started: string[]; failed: string[] };
}

export interface OperationParts {
  machines: Machines;
  journal: HostJournal;
  seeds: DiskSeeds;
  snapshots: SharedSnapshots;
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
  parts.machines.driver(spec);
  await requireSpace(parts.machines.parts.poolDir);
  const context: CreateContext = { spec };
  const record = { id: spec.id, kind: "create", begun: [], direction: "forward" as const, context };
  await runSaga(record, createSteps(parts), parts.journal);
  return parts.machines.get(spec.id);
}

export function createSteps(parts: OperationParts): SagaStep<CreateContext>[] {
  const { machines, seeds } = parts;
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
        const ready = spec.checkpointId === "" ? await claimReady(machines, spec.id) : undefined;
        context.claimed = ready !== undefined;
        if (ready?.assignment !== undefined) context.assignment = ready.assignment;
        if (context.claimed) return;
        const record = machines.get(spec.id);
        const files = machines.files(record);
        if (spec.checkpointId === "" && (await machines.driver(record).freshDisk?.(files, record))) return;
        await seeds.withSeed(spec, async (image, sizeMb) => {
          await cloneDisk(machines.parts.native, image, files.diskImage);
          if (sizeMb < spec.diskMb) await grow[spec.runtime](files.diskImage, spec.diskMb);
          // A disk is never made smaller than what it was seeded from.
          else if (sizeMb > spec.diskMb) await machines.change(spec.id, { diskMb: sizeMb });
        });
      },
      undo: ({ spec }) => stopMachine(machines, spec.id),
    },
    unless(
      ({ claimed }) => claimed === true,
      machineStep(machines, ({ spec }) => spec.id),
    ),
    {
      name: "assign",
      // What the checkpoint says should run is started; a template has no services.
      async do({ spec, assignment }) {
        if (assignment === machines.assignmentOf(machines.get(spec.id))) return;
        await machines.assign(spec.id, { renewIdentity: true, startServices: true });
      },
    },
    {
      name: "commit",
      // One that was made ahead is durable since it was claimed.
      do: ({ spec, claimed }) => commit(machines, spec.id, { durable: claimed !== true }),
    },
  ];
}

/** A stopped machine, cold from its disk, with the services that ran. Why it was stopped, where its record says so, it says still. */
export async function startMachine(parts: OperationParts, id: string): Promise<MachineRecord> {
  const known = parts.machines.require(id, "stopped", "running");
  if (known.phase === "running") return known;
  const context: StartContext = { id, words: known.errorMessage };
  const record = { id, kind: "start", begun: [], direction: "forward" as const, context };
  await runSaga(record, startSteps(parts), parts.journal);
  return parts.machines.get(id);
}

export function startSteps({ machines }: OperationParts): SagaStep<StartContext>[] {
  return [
    {
      name: "phase",
      async do({ id }) {
        await machines.change(id, { phase: "starting" });
      },
      async undo({ id, words = "" }) {
        await machines.change(id, { phase: "stopped", errorMessage: words });
      },
    },
    machineStep(machines, ({ id }) => id),
    {
      name: "assign",
      async do(context) {
        context.services = await machines.assign(context.id, { renewIdentity: false, startServices: true });
      },
    },
    {
      name: "commit",
      async do({ id, words = "", services }) {
        const errorMessage = words === "" || services === undefined ? words : withServices(words, services);
        await machines.change(id, { phase: "running", errorMessage }, DURABLE);
      },
    },
  ];
}

/** A machine made ahead, which becomes this one. It is waited for the disk while that machine wakes up. */
async function claimReady(machines: Machines, id: string): Promise<RunningMachine | undefined> {
  const record = machines.get(id);
  return await machines
    .driver(record)
    .claimReady?.(machines.files(record), record, (running) => noteRunning(machines, id, running, DURABLE));
}

function machineStep<Context>(machines: Machines, idOf: (context: Context) => string): SagaStep<Context> {
  return {
    name: "machine",
    async do(context) {
      const record = machines.get(idOf(context));
      const running = await machines.driver(record).create(machines.files(record), record);
      await noteRunning(machines, record.id, running);
    },
    undo: (context) => stopMachine(machines, idOf(context)),
  };
}

/** The step, left out where `skip` says so. What it may have done is undone all the same. */
const unless = <Context>(
  skip: (context: Context) => boolean,
  step: SagaStep<Context>,
): SagaStep<Context> => ({
  ...step,
  do: async (context) => (skip(context) ? undefined : step.do(context)),
});

/** From here on a start finds a machine with a disk, which it starts whatever became of it (recovery.ts). */
async function noteRunning(
  machines: Machines,
  id: string,
  running: RunningMachine,
  options: { durable?: boolean } = {},
): Promise<void> {
  const fields = {
    agentHost: running.agentHost,
    agentPort: running.agentPort,
    controlSecret: running.bootstrapSecret ?? "",
    channel: 1 as const,
    ...(running.blockDevice === undefined ? {} : { blockDevice: running.blockDevice }),
  };
  await machines.change(id, fields, options);
}
const DURABLE = { durable: true };

async function stopMachine(machines: Machines, id: string): Promise<void> {
  const record = machines.find(id);
  if (record) await machines.driver(record).stopMachine(machines.files(record));
}

export function commitStep<Context>(
  machines: Machines,
  idOf: (context: Context) => string,
): SagaStep<Context> {
  return {
    name: "commit",
    do: (context) => commit(machines, idOf(context), DURABLE),
  };
}

async function commit(machines: Machines, id: string, options: { durable: boolean }): Promise<void> {
  await machines.change(id, { phase: "running", errorMessage: "" }, options);
}

/** Repeatable; what is not there is destroyed already. A crash in its middle is finished at the next start. */
export async function destroyMachine({ machines }: OperationParts, id: string): Promise<void> {
  const record = machines.find(id);
  if (!record) return;
  if (record.phase !== "destroying") await machines.change(id, { phase: "destroying" }, { durable: true });
  await machines.driver(record).destroy(machines.files(record));
  await rm(machines.files(record).diskImage, { force: true });
  await machines.forget(id);
}
