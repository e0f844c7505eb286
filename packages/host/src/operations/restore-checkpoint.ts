/**
 * Restore: rewinds a machine's disk in place to a checkpoint.
 *
 * A restore is noted on the machine's record before anything is touched; the note is removed when the restore is committed or
 * undone. After a crash, recovery.ts completes a restore that is still noted.
 */
import { rm } from "node:fs/promises";
import { allDone, CleanupStack } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import type { CheckpointInfo } from "../checkpoint/catalogue.ts";
import { cloneDisk, syncDisk } from "../disk/disk.ts";
import type { MachineFiles } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import type { CheckpointParts } from "./checkpoint-machine.ts";
import type { Parts } from "./parts.ts";

type RestoreParts = Parts<"machines" | "agents" | "drivers" | "native" | "log">;

export interface RestoreResult {
  durationMs: number;
  /** Ran at checkpoint time and run now. */
  started: string[];
  /** Ran when the restore began and do not run now. */
  stopped: string[];
  /** Ran at checkpoint time and could not be started. */
  failed: string[];
}

/** Rewinds the disk in place: same id, domain and token. Throws not_found for a checkpoint that is not the sandbox's own. */
export async function restoreCheckpoint(
  parts: CheckpointParts,
  id: string,
  checkpointId: string,
): Promise<RestoreResult> {
  const { machines, queue, agents, checkpoints, log } = parts;
  const own = await ownCheckpoint(parts, id, checkpointId);
  const began = performance.now();
  await requireSpace(parts.poolDir);
  const leased = await checkpoints.lease(own.team_id, checkpointId);
  try {
    return await queue.timed("restore", id, async () => {
      const record = machines.require(id, "running");
      requireRuntime(own, record.runtime);
      const disks = record.disks + 1;
      const disk = `disk-${disks}.ext4`;
      const ran = await CleanupStack.guard(async (cleanup) => {
        const ready = await machines.change(id, { disks });
        const image = filesWith(parts, ready, disk).diskImage;
        cleanup.push("disk", () => rm(image, { force: true }));
        let runningServices: string[] = [];
        const prepare = async (): Promise<void> => {
          ({ runningServices } = await agents.of(ready).prepareCheckpoint({ swapAhead: true }));
        };
        // Synced before the record names the new disk.
        const copy = cloneDisk(parts.native, leased.image, image, { durable: false });
        await allDone([copy, prepare()]);
        const restore = { checkpointId, disk, services: own.running_services, ran: runningServices };
        // A crash of the service finds the note. After a power cut the machine is gone, and the restore did not happen.
        await machines.change(id, { restore });
        return runningServices;
      });
      machines.setBusy(id, true);
      let letGo = false;
      try {
        const { started, failed } = await carryOut(parts, id, () => {
          letGo = true;
        });
        const stopped = ran.filter((name) => !started.includes(name));
        return { durationMs: performance.now() - began, started, stopped, failed };
      } catch (error) {
        log.warn({ err: error, sandbox_id: id }, "restore failed: going back to the old disk");
        // A new disk that cannot be attached is refused before any process of the sandbox is stopped.
        if (letGo) await turnBack(parts, id);
        else await forget(parts, id);
        throw error;
      } finally {
        machines.setBusy(id, false);
      }
    });
  } finally {
    leased.release();
  }
}

/** At start: completes a restore that a crash cut off, or undoes it. Adopt the machine first. */
export async function finishRestore(parts: RestoreParts, id: string): Promise<void> {
  const { machines, log } = parts;
  if (machines.find(id)?.restore === undefined) return;
  machines.setBusy(id, true);
  try {
    await carryOut(parts, id);
  } catch (error) {
    log.warn(
      { err: error, sandbox_id: id },
      "a restore cut off by a crash could not be completed; it is undone",
    );
    await turnBack(parts, id);
  } finally {
    machines.setBusy(id, false);
  }
}

/** Does a noted restore. Every step can be repeated after a crash. `onLetGo`: called before the agent stops the processes. */
async function carryOut(
  parts: RestoreParts,
  id: string,
  onLetGo?: () => void,
): Promise<{ started: string[]; failed: string[] }> {
  const { machines, agents, drivers, native } = parts;
  const record = machines.get(id);
  const note = noteOf(record);
  const agent = agents.of(record);
  const hooks = {
    flush: async () => undefined,
    detachDisk: () => {
      onLetGo?.();
      return agent.detachDisk().then(() => undefined);
    },
  };
  const old = machines.files(record);
  const next = filesWith(parts, record, note.disk);
  await drivers.of(record).swapDisk(old, next.diskImage, hooks);
  const blockDevice = record.blockDevice ?? "";
  let started: string[] = [];
  let failed: string[] = [];
  const attach = async (): Promise<void> => {
    const answer = await agent.attachDisk({ blockDevice, startServices: note.services });
    started = answer.startedServices;
    failed = answer.failedServices;
  };
  await allDone([attach(), syncDisk(native, next.diskImage)]);
  await machines.change(id, { disk: note.disk }, { durable: true });
  await machines.dropField(id, "restore");
  await rm(old.diskImage, { force: true });
  return { started, failed };
}

/** Brings the sandbox back to its old disk and the services that ran before the restore. */
async function turnBack(parts: RestoreParts, id: string): Promise<void> {
  const { machines, agents, drivers } = parts;
  const record = machines.get(id);
  const note = noteOf(record);
  const agent = agents.of(record);
  const hooks = {
    flush: async () => undefined,
    detachDisk: () => agent.detachDisk().then(() => undefined),
  };
  const next = filesWith(parts, record, note.disk);
  await drivers.of(record).swapDisk(next, machines.files(record).diskImage, hooks);
  await agent.attachDisk({ blockDevice: record.blockDevice ?? "", startServices: note.ran });
  await forget(parts, id);
}

/** Drops the note of the restore and removes the disk made for it. */
async function forget(parts: Parts<"machines">, id: string): Promise<void> {
  const { machines } = parts;
  const record = machines.get(id);
  const { diskImage } = filesWith(parts, record, noteOf(record).disk);
  await machines.dropField(id, "restore");
  await rm(diskImage, { force: true });
}

/** The sandbox's own checkpoint; throws not_found for any other id (spec/contract.md, Data plane: checkpoints). */
export async function ownCheckpoint(
  { machines, checkpoints }: Pick<CheckpointParts, "machines" | "checkpoints">,
  id: string,
  checkpointId: string,
): Promise<CheckpointInfo> {
  const info = await checkpoints.find(machines.get(id).teamId, checkpointId);
  if (info.sandbox_id === id) return info;
  throw new ClocheError("not_found", `checkpoint_id ${JSON.stringify(checkpointId)} does not exist`);
}

/** A VM may have written a hostile file system. The host itself mounts a gVisor sandbox's disk, so it refuses a VM's. */
export function requireRuntime(info: CheckpointInfo, runtime: string): void {
  if (runtime !== "gvisor" || info.runtime === "gvisor") return;
  throw new ClocheError(
    "failed_precondition",
    `checkpoint_id: ${info.id} was written by runtime ${info.runtime} and cannot seed one of runtime ${runtime}`,
  );
}

function noteOf(record: MachineRecord) {
  if (!record.restore) throw new ClocheError("internal", `machine ${record.id} has no restore under way`);
  return record.restore;
}

const filesWith = ({ machines }: Parts<"machines">, record: MachineRecord, disk: string): MachineFiles =>
  machines.files({ ...record, disk });
