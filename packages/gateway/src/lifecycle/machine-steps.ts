/**
 * What the steps of operations do with a machine: bring it to a phase on the host of its record, find out what became of it,
 * and get it there first where it is in storage or its host is lost. Each can be repeated.
 */
import { MachinePhase, type Machine } from "@cloche/protocol/host";
import { NoRoom } from "../database/host-reservations.ts";
import type { OperationInput } from "../database/operations.ts";
import { imageOf, type SandboxRecord } from "../database/sandbox-record.ts";
import { HostError } from "./host-calls.ts";
import { waitsForHost } from "./host-loss-words.ts";
import { type SagaWorld, TurnBack } from "./saga-world.ts";

/** Where it is lost, the host destroys its copy itself before it serves again. */
export async function destroyMachine(world: SagaWorld): Promise<void> {
  if (world.isHostLost) return;
  await world.host.destroy(world.operation.sandboxId, world.call);
  world.machines.forget(world.operation.sandboxId);
}

/** The record, of a host that is not known to be lost. */
export async function placed(world: SagaWorld): Promise<SandboxRecord | undefined> {
  const record = await world.read();
  return record === undefined || !world.isHostLost ? record : await world.leaveLostHost(record);
}

export async function resumeMachine(world: SagaWorld): Promise<void> {
  const { checkpoint } = world.operation.input;
  const read = await world.read();
  if (read === undefined) return;
  if (world.isHostLost && read.image === "" && checkpoint === undefined)
    throw new TurnBack("unavailable", waitsForHost);
  if (checkpoint !== undefined) return await restartFrom(world, checkpoint.id);
  const record = await placed(world).catch((error: unknown) => {
    // It waits in storage, and its owner is told.
    throw error instanceof NoRoom ? new TurnBack("unavailable", error.message) : error;
  });
  if (record === undefined) return;
  await bringImage(world, record);
  await runMachine(world);
}

/** Until there is room for it somewhere it is tried again. */
async function restartFrom(world: SagaWorld, checkpointId: string): Promise<void> {
  const record = await placed(world);
  if (record === undefined) return;
  const machine = await look(world);
  const isMade = machine?.phase === MachinePhase.RUNNING || machine?.phase === MachinePhase.STARTING;
  // A copy of before that the sandbox has moved on from.
  if (machine !== undefined && !isMade) await destroyMachine(world);
  const seeded = { ...record, sourceCheckpointId: checkpointId };
  await runningAfter(world, () => world.host.create(seeded, world.call));
}

/** Makes the host's machine the one of the record's image, where there is one and the host has another, or none. */
async function bringImage(world: SagaWorld, record: SandboxRecord): Promise<void> {
  const image = imageOf(record);
  if (image === undefined) return;
  const machine = await look(world);
  if (machine !== undefined) {
    if (isOfImage(machine, image.key, world.operation.input.movedFrom !== undefined)) return;
    // A copy of before that the sandbox has moved on from.
    await destroyMachine(world);
  }
  await reach(world, MachinePhase.SUSPENDED, () => world.host.import(record, image.key, world.call));
}

/** One that runs was resumed from it: a sandbox leaves a host suspended only, or for good. */
function isOfImage({ phase, storedImage }: Machine, key: string, hasMoved: boolean): boolean {
  if (phase === MachinePhase.SUSPENDED) return storedImage?.key === key;
  return !(hasMoved && (phase === MachinePhase.STOPPED || phase === MachinePhase.FAILED));
}

export async function afterResume(world: SagaWorld): Promise<Fate> {
  const record = await world.read();
  const isDurable = record !== undefined && record.image !== "";
  if (world.operation.input.checkpoint !== undefined) {
    await destroyMachine(world);
    return "lost";
  }
  if (world.isHostLost) return "suspended";
  const machine = await look(world);
  // Its image stays until a resume has succeeded, and the host undoes what is left of this one before the next: SUSPENDED is true
  // again then, and ERROR would be for good.
  const fate = machine?.phase === MachinePhase.FAILED ? "suspended" : fateOf(machine);
  return fate === "lost" && isDurable ? "suspended" : fate;
}

/** From memory image, or from its disk where the machine has none: after a reboot of the host. */
async function runMachine(world: SagaWorld): Promise<void> {
  const { sandboxId } = world.operation;
  const isStopped = world.machines.get(sandboxId)?.phase === MachinePhase.STOPPED;
  if (isStopped) return await startCold(world);
  try {
    await runningAfter(world, () => world.host.resume(sandboxId, world.call));
  } catch (error) {
    if (!(error instanceof TurnBack)) throw error;
    if ((await look(world))?.phase !== MachinePhase.STOPPED) throw error;
    await startCold(world);
  }
}

async function startCold(world: SagaWorld): Promise<void> {
  const record = await world.read();
  if (record === undefined) return;
  await runningAfter(world, () => world.host.create(record, world.call));
}

export const runningAfter = (world: SagaWorld, call: () => Promise<Machine>): Promise<void> =>
  reach(world, MachinePhase.RUNNING, call);

/** Calls the host; a refusal counts only when the machine did not get there all the same. */
export async function reach(
  world: SagaWorld,
  phase: MachinePhase,
  call: () => Promise<Machine>,
): Promise<void> {
  let machine: Machine | undefined;
  try {
    machine = await call();
    world.machines.note(machine);
    if (machine.phase === phase) return;
  } catch (error) {
    if (!(error instanceof HostError)) throw error;
    // It was meant for a host or an attempt of before: nothing is decided.
    if (error.code === "aborted") throw error;
    machine = await look(world);
    if (machine?.phase === phase) return;
    throw TurnBack.because(error);
  }
  throw new TurnBack("internal", machine.errorMessage || "the machine did not get there");
}

export async function look(world: SagaWorld): Promise<Machine | undefined> {
  const machine = await world.host.find(world.operation.sandboxId, world.call);
  if (machine === undefined) world.machines.forget(world.operation.sandboxId);
  else world.machines.note(machine);
  return machine;
}

export type Fate = NonNullable<OperationInput["fate"]>;

/** Throws while the machine is on its way: the undo is then tried again. */
export function fateOf(machine: Machine | undefined): Fate {
  switch (machine?.phase) {
    case MachinePhase.RUNNING:
      return "running";
    case MachinePhase.SUSPENDED:
    case MachinePhase.STOPPED:
      return "suspended";
    case undefined:
    case MachinePhase.FAILED:
    case MachinePhase.DESTROYED:
      return "lost";
    default:
      throw new Error(`the machine is still in phase ${machine?.phase}`);
  }
}

/** After a suspend that failed: makes the machine run again where that can be. */
export async function bringBack(world: SagaWorld): Promise<Fate> {
  const fate = fateOf(await look(world));
  if (fate !== "suspended") return fate;
  try {
    await runMachine(world);
    return "running";
  } catch (error) {
    if (!(error instanceof TurnBack)) throw error;
    return fateOf(await look(world));
  }
}
