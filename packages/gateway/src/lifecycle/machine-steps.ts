/**
 * What the steps of operations do with a machine: bring it to a phase on the record's host, import it from storage or
 * move it off a lost host before that, and find out what became of it. Each function can be repeated.
 */
import { MachinePhase, type Machine } from "@cloche/protocol/host";
import { NoRoom } from "../database/host-reservations.ts";
import { imageOf, type SandboxRecord } from "../database/sandbox-record.ts";
import { HostError } from "../hosts/host-calls.ts";
import { waitsForHost } from "./host-loss-messages.ts";
import { type SagaWorld, TurnBack } from "./saga-world.ts";

/** Skips a lost host, which destroys its copy itself before it serves again. */
export async function destroyMachine(world: SagaWorld): Promise<void> {
  if (world.isHostLost) return;
  await world.host.destroy(world.operation.sandboxId, world.call);
  world.machines.forget(world.operation.sandboxId);
}

/** Returns the record, moved to another host first if its host is known to be lost. */
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
    // The image stays in storage, and the owner is told.
    throw error instanceof NoRoom ? new TurnBack("unavailable", error.message) : error;
  });
  if (record === undefined) return;
  await bringImage(world, record);
  await runMachine(world);
}

/** Restarts from a checkpoint. While no host has room, NoRoom makes the operation wait and try again. */
async function restartFrom(world: SagaWorld, checkpointId: string): Promise<void> {
  const record = await placed(world);
  if (record === undefined) return;
  const machine = await findMachine(world);
  const isMade = machine?.phase === MachinePhase.RUNNING || machine?.phase === MachinePhase.STARTING;
  // An old copy, which the sandbox has moved on from.
  if (machine !== undefined && !isMade) await destroyMachine(world);
  const seeded = { ...record, sourceCheckpointId: checkpointId };
  await runningAfter(world, () => world.host.create(seeded, world.call));
}

/** If the record names a stored image, imports it, unless the host has the machine of that image already. */
async function bringImage(world: SagaWorld, record: SandboxRecord): Promise<void> {
  const image = imageOf(record);
  if (image === undefined) return;
  const machine = await findMachine(world);
  if (machine !== undefined) {
    if (isOfImage(machine, image.key, world.operation.input.movedFrom !== undefined)) return;
    // An old copy, which the sandbox has moved on from.
    await destroyMachine(world);
  }
  await reach(world, MachinePhase.SUSPENDED, () => world.host.import(record, image.key, world.call));
}

/** Imports the suspended source of a clone on the clone's host, if it is only in storage. */
export async function bringSource(
  world: SagaWorld,
  { sourceSandboxId, hostId }: SandboxRecord,
): Promise<void> {
  const source = await world.recordOf(sourceSandboxId);
  const image = source && imageOf(source);
  if (source === undefined || image === undefined) return;
  if (source.state !== "SANDBOX_STATE_SUSPENDED" || source.hostId !== hostId) return;
  // Without this operation's number: the host would refuse an older operation of the source from then on.
  const { fence: _, ...call } = world.call;
  const machine = await world.host.find(source.id, call);
  // STARTING: another fork is fetching the image. The host answers a second import once the first is over.
  if (machine !== undefined && machine.phase !== MachinePhase.STARTING) return;
  try {
    world.machines.note(await world.host.import(source, image.key, call));
  } catch (error) {
    if (!(error instanceof HostError) || error.code === "aborted") throw error;
    throw TurnBack.because(error);
  }
}

/** A running machine was resumed from the image: a sandbox leaves a host only while suspended, or for good. */
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
  const machine = await findMachine(world);
  // The image stays until a resume succeeds, and the host cleans up the failed machine before the next resume. So
  // SUSPENDED is right; ERROR would be final.
  const fate = machine?.phase === MachinePhase.FAILED ? "suspended" : fateOf(machine);
  return fate === "lost" && isDurable ? "suspended" : fate;
}

/** Resumes from the memory image, or starts from the disk if there is none, as after a reboot of the host. */
async function runMachine(world: SagaWorld): Promise<void> {
  const { sandboxId } = world.operation;
  const isStopped = world.machines.get(sandboxId)?.phase === MachinePhase.STOPPED;
  if (isStopped) return await startCold(world);
  try {
    await runningAfter(world, () => world.host.resume(sandboxId, world.call));
  } catch (error) {
    if (!(error instanceof TurnBack)) throw error;
    if ((await findMachine(world))?.phase !== MachinePhase.STOPPED) throw error;
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

/** Calls the host to bring the machine to `phase`. A refusal counts only if the machine is not in that phase anyway. */
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
    // The call named an older host generation or attempt: the host decided nothing about the machine.
    if (error.code === "aborted") throw error;
    machine = await findMachine(world);
    if (machine?.phase === phase) return;
    throw TurnBack.because(error);
  }
  throw new TurnBack("internal", machine.errorMessage || "the machine did not get there");
}

export async function findMachine(world: SagaWorld): Promise<Machine | undefined> {
  const machine = await world.host.find(world.operation.sandboxId, world.call);
  if (machine === undefined) world.machines.forget(world.operation.sandboxId);
  else world.machines.note(machine);
  return machine;
}

/** What became of the machine of a suspend or resume that turned back. */
export type Fate = "running" | "suspended" | "lost";

/** Throws while the machine is between two phases: the undo is then tried again. */
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

/** After a failed suspend: makes the machine run again if possible. */
export async function bringBack(world: SagaWorld): Promise<Fate> {
  const fate = fateOf(await findMachine(world));
  if (fate !== "suspended") return fate;
  try {
    await runMachine(world);
    return "running";
  } catch (error) {
    if (!(error instanceof TurnBack)) throw error;
    return fateOf(await findMachine(world));
  }
}
