/**
 * Resume: a suspended machine continues from its memory image. If it has none, or the image can never be restored here, it starts
 * from its disk.
 */
import { rm } from "node:fs/promises";
import { runSaga, type SagaRecord, type SagaStep } from "@cloche/base";
import { ClocheError } from "@cloche/protocol";
import { cloneDisk } from "../disk/disk.ts";
import { ImageMismatchError, snapshotDisk } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { withoutMemory } from "./cold-start-messages.ts";
import { commitStep, restoreStep } from "./machine-steps.ts";
import { dropSnapshots, imageOf } from "./memory-images.ts";
import type { OperationParts } from "./operation-parts.ts";
import { NotUndoneError, runToAnEnd } from "./run-to-an-end.ts";
import { startMachine } from "./start-machine.ts";
import { giveBack } from "./suspend-machine.ts";

export interface ResumeContext {
  id: string;
  disk: string;
}

/** The machine continues where it was suspended, at a new address. */
export async function resumeMachine(parts: OperationParts, id: string): Promise<MachineRecord> {
  const { machines, drivers } = parts;
  if (machines.find(id)?.phase === "failed") await undoFailed(parts, id);
  const known = machines.require(id, "suspended", "running");
  if (known.phase === "running") return known;
  await requireSpace(parts.poolDir);
  if (known.snapshot === undefined) return startFromDisk(parts, id);
  const context: ResumeContext = { id, disk: `disk-${known.disks + 1}.ext4` };
  const saga = { id, kind: "resume", begun: [], direction: "forward" as const, context };
  try {
    // Checked before the saga begins, so that nothing has to be undone.
    await drivers.of(known).requireRestorable(imageOf(parts, id));
    await runToAnEnd(parts, saga, resumeSteps(parts));
  } catch (error) {
    if (error instanceof ImageMismatchError) return startFromImage(parts, id, error);
    const errorMessage = `resume failed: ${ClocheError.from(error).message}`;
    // Some of its processes may still run. Its image stays, and the next start ends them.
    if (error instanceof NotUndoneError) await machines.move(id, "gave_up", { errorMessage });
    else await machines.change(id, { errorMessage });
    throw error;
  }
  await dropSnapshots(parts, id);
  return machines.get(id);
}

/** Tries again to undo a resume that failed and could not be undone. A machine that failed otherwise stays failed. */
async function undoFailed(parts: OperationParts, id: string): Promise<void> {
  const left = (await parts.journal.pending()).find((saga) => saga.id === id && saga.kind === "resume");
  if (left === undefined) return;
  // A saga that was undone throws as well: the error that caused the undo.
  await runSaga(left as SagaRecord<ResumeContext>, resumeSteps(parts), parts.journal).catch((err: unknown) =>
    parts.log.warn({ err, sandbox_id: id }, "what is left of a resume was undone"),
  );
}

/** Starts a machine without a memory image: suspended, or imported, without its memory. Its disk is in place. */
async function startFromDisk(parts: OperationParts, id: string): Promise<MachineRecord> {
  const { machines } = parts;
  await giveBack(parts, id);
  const errorMessage = machines.get(id).errorMessage || withoutMemory("it was suspended without it");
  await machines.move(id, "ended", { errorMessage }, { durable: true });
  return startMachine(parts, id);
}

/** Starts a machine whose memory can never be restored here from its image's disk: otherwise nothing could wake the sandbox. */
async function startFromImage(
  parts: OperationParts,
  id: string,
  reason: ImageMismatchError,
): Promise<MachineRecord> {
  const { machines } = parts;
  const { disks } = machines.get(id);
  const disk = `disk-${disks + 1}.ext4`;
  const record = await machines.change(id, { disk, disks: disks + 1 });
  const image = snapshotDisk(imageOf(parts, id));
  await cloneDisk(parts.native, image, machines.files(record).diskImage);
  parts.log.warn({ err: reason, sandbox_id: id }, "memory cannot be restored: starting from the disk");
  const errorMessage = withoutMemory(reason.message);
  await machines.move(id, "ended", { errorMessage }, { durable: true });
  await startMachine(parts, id);
  await dropSnapshots(parts, id);
  return machines.get(id);
}

export function resumeSteps(parts: OperationParts): SagaStep<ResumeContext>[] {
  const { machines, agents, native } = parts;
  return [
    {
      name: "phase",
      async do({ id }) {
        await machines.move(id, "resume", { errorMessage: "" });
      },
      async undo({ id }) {
        await machines.move(id, "resume_failed", { agentHost: "" });
      },
    },
    {
      name: "disk",
      async do({ id, disk }) {
        const record = await machines.change(id, { disk, disks: machines.get(id).disks + 1 });
        const image = snapshotDisk(imageOf(parts, id));
        await cloneDisk(native, image, machines.files(record).diskImage, { durable: false });
      },
      async undo({ id }) {
        await rm(machines.files(machines.get(id)).diskImage, { force: true });
      },
    },
    // A resume undone after Assign may have left a secret in the record that the image does not know: take that of the snapshot.
    restoreStep(parts, ({ id }) => ({
      id,
      from: imageOf(parts, id),
      controlSecret: machines.get(id).snapshotSecret,
    })),
    {
      name: "assign",
      async do({ id }) {
        await agents.assign(id, { renewIdentity: false, startServices: false });
      },
    },
    commitStep(parts, ({ id }) => id),
  ];
}
