// Suspend and resume: memory and disk of a machine at one instant, kept in its directory while no process of it lives.
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { runSaga, type SagaStep, syncDirectory } from "@cloche/base";
import { ClocheError, limits } from "@cloche/protocol";
import type { PrepareSnapshotResponseJson } from "@cloche/protocol/guest";
import { cloneDisk } from "../disk/disk.ts";
import { type GuestHooks, ImageMismatchError, type SnapshotFiles, snapshotDisk } from "../drivers/driver.ts";
import { requireSpace } from "../pool/reserve.ts";
import { withoutMemory } from "./cold-start-words.ts";
import { commitStep, type OperationParts, startMachine } from "./create-machine.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import type { Machines } from "../machines/machines.ts";

export interface SuspendContext {
  id: string;
  /** Directory name in the machine's directory. */
  snapshot: string;
}
export interface ResumeContext {
  id: string;
  disk: string;
}

const PATHS_NAMED = 5;
const MIB = 1024 * 1024;
const GIVE_BACK_TRIES = 3;

/** Answers when memory and disk are durable and the machine's processes are gone. */
export async function suspendMachine(parts: OperationParts, id: string): Promise<MachineRecord> {
  const { machines } = parts;
  const known = machines.require(id, "running", "suspended");
  if (known.phase === "suspended") {
    await giveBack(machines, id);
    return known;
  }
  await requireSpace(machines.parts.poolDir);
  const context: SuspendContext = { id, snapshot: `snapshot-${known.epoch}` };
  const saga = { id, kind: "suspend", begun: [], direction: "forward" as const, context };
  await runSaga(saga, suspendSteps(parts), parts.journal);
  await giveBack(machines, id);
  return machines.get(id);
}

export function suspendSteps({ machines }: OperationParts): SagaStep<SuspendContext>[] {
  const files = (context: SuspendContext): SnapshotFiles =>
    snapshotOf(machines, machines.get(context.id), context.snapshot);
  return [
    {
      name: "phase",
      async do({ id }) {
        await machines.change(id, { phase: "suspending", errorMessage: "" });
      },
      async undo({ id }) {
        await machines.change(id, { phase: "running" });
      },
    },
    {
      name: "snapshot",
      async do(context) {
        const record = machines.get(context.id);
        const driver = machines.driver(record);
        // Repeated after a crash: the half-written image goes, the machine goes on first.
        await driver.unblock(machines.files(record));
        await rm(files(context).dir, { recursive: true, force: true });
        await mkdir(files(context).dir, { mode: 0o700 });
        await driver.snapshot(
          machines.files(record),
          files(context),
          { stop: true },
          guestHooks(machines, record),
        );
        await syncDirectory(machines.files(record).dir);
      },
      async undo(context) {
        const record = machines.get(context.id);
        await machines.driver(record).unblock(machines.files(record));
        await rm(files(context).dir, { recursive: true, force: true });
      },
    },
    {
      name: "commit",
      // From here on the image counts; what still runs is stopped, now or at the next start.
      async do({ id, snapshot }) {
        const snapshotSecret = machines.get(id).controlSecret;
        const fields = { phase: "suspended", snapshot, snapshotSecret, agentHost: "" } as const;
        await machines.change(id, fields, { durable: true });
      },
    },
  ];
}

/** Ends what a suspended machine still has: processes, and the disk that the image replaced. Repeatable. */
export async function giveBack(machines: Machines, id: string): Promise<void> {
  const record = machines.get(id);
  const files = machines.files(record);
  for (let attempt = 1; ; attempt += 1) {
    try {
      await machines.driver(record).stopMachine(files);
      break;
    } catch (error) {
      // The image counts already: there is no way back, only another try; the next suspend or start tries again.
      if (attempt === GIVE_BACK_TRIES) throw error;
    }
  }
  await rm(files.diskImage, { force: true });
}

/** The machine goes on where it was suspended, at a new address. */
export async function resumeMachine(parts: OperationParts, id: string): Promise<MachineRecord> {
  const { machines } = parts;
  const known = machines.require(id, "suspended", "running");
  if (known.phase === "running") return known;
  await requireSpace(machines.parts.poolDir);
  const context: ResumeContext = { id, disk: `disk-${known.disks + 1}.ext4` };
  const saga = { id, kind: "resume", begun: [], direction: "forward" as const, context };
  try {
    // Before anything is begun that would have to be undone.
    await machines.driver(known).requireRestorable(imageOf(machines, id));
    await runSaga(saga, resumeSteps(parts), parts.journal);
  } catch (error) {
    if (error instanceof ImageMismatchError) return startFromImage(parts, id, error);
    await machines.change(id, { errorMessage: `resume failed: ${ClocheError.from(error).message}` });
    throw error;
  }
  await dropSnapshots(machines, id);
  return machines.get(id);
}

/** Its memory can never be restored here: better its disk and services than a sandbox that nothing can wake. */
async function startFromImage(
  parts: OperationParts,
  id: string,
  reason: ImageMismatchError,
): Promise<MachineRecord> {
  const { machines } = parts;
  const { disks } = machines.get(id);
  const disk = `disk-${disks + 1}.ext4`;
  const record = await machines.change(id, { disk, disks: disks + 1 });
  const image = snapshotDisk(imageOf(machines, id));
  await cloneDisk(machines.parts.native, image, machines.files(record).diskImage);
  machines.parts.log.warn(
    { err: reason, sandbox_id: id },
    "memory cannot be restored: starting from the disk",
  );
  const errorMessage = withoutMemory(reason.message);
  await machines.change(id, { phase: "stopped", errorMessage }, { durable: true });
  await startMachine(parts, id);
  await dropSnapshots(machines, id);
  return machines.get(id);
}

/** That of a suspended machine. */
function imageOf(machines: Machines, id: string): SnapshotFiles {
  const record = machines.get(id);
  if (record.snapshot === undefined) throw new ClocheError("internal", `machine ${id} has no memory image`);
  return snapshotOf(machines, record, record.snapshot);
}

export function resumeSteps({ machines }: OperationParts): SagaStep<ResumeContext>[] {
  return [
    {
      name: "phase",
      async do({ id }) {
        await machines.change(id, { phase: "resuming", errorMessage: "" });
      },
      async undo({ id }) {
        await machines.change(id, { phase: "suspended", agentHost: "" });
      },
    },
    {
      name: "disk",
      async do({ id, disk }) {
        const record = await machines.change(id, { disk, disks: machines.get(id).disks + 1 });
        await cloneDisk(
          machines.parts.native,
          snapshotDisk(imageOf(machines, id)),
          machines.files(record).diskImage,
        );
      },
      async undo({ id }) {
        await rm(machines.files(machines.get(id)).diskImage, { force: true });
      },
    },
    // A resume that was undone after its Assign must not leave the record with a secret that the image does not know.
    restoreStep(machines, ({ id }) => ({
      id,
      from: imageOf(machines, id),
      controlSecret: machines.get(id).snapshotSecret,
    })),
    {
      name: "assign",
      async do({ id }) {
        await machines.assign(id, { renewIdentity: false, startServices: false });
      },
    },
    commitStep(machines, ({ id }) => id),
  ];
}

export function restoreStep<Context>(
  machines: Machines,
  plan: (context: Context) => { id: string; from: SnapshotFiles; controlSecret?: string | undefined },
): SagaStep<Context> {
  return {
    name: "machine",
    async do(context) {
      const { id, from, controlSecret } = plan(context);
      const record = machines.get(id);
      const running = await machines.driver(record).restore(machines.files(record), from, record);
      await machines.change(id, {
        agentHost: running.agentHost,
        agentPort: running.agentPort,
        ...(controlSecret === undefined ? {} : { controlSecret }),
        ...(running.blockDevice === undefined ? {} : { blockDevice: running.blockDevice }),
      });
    },
    async undo(context) {
      const record = machines.find(plan(context).id);
      if (record) await machines.driver(record).stopMachine(machines.files(record));
    },
  };
}

/** Memory images that no longer count. Repeatable. */
export async function dropSnapshots(machines: Machines, id: string): Promise<void> {
  const record = machines.get(id);
  if (record.snapshot === undefined) return;
  await rm(snapshotOf(machines, record, record.snapshot).dir, { recursive: true, force: true });
  await machines.dropField(id, "snapshot");
}

const snapshotOf = (machines: Machines, record: MachineRecord, name: string): SnapshotFiles => ({
  dir: join(machines.files(record).dir, name),
});

/** What a driver asks of the agent in the middle of a snapshot or swap. */
export function guestHooks(machines: Machines, record: MachineRecord): GuestHooks {
  const agent = machines.agent(record);
  return {
    async flush() {
      // The agent takes them one after the other; the way there they go together.
      const [prepared] = await Promise.all([agent.prepareSnapshot(), agent.prepareCheckpoint()]);
      if (record.runtime === "gvisor") refuseDeletedFiles(prepared);
    },
    async detachDisk() {
      await agent.detachDisk();
    },
  };
}

/**
 * gVisor writes deleted files that a process holds open into the memory image, by way of its own memory, which they must not
 * fill; and it cannot write any but regular files and directories.
 */
function refuseDeletedFiles({
  blockingPaths,
  deletedBytes,
  deletedPaths,
}: Required<PrepareSnapshotResponseJson>): void {
  const refuse = (what: string, paths: readonly string[]): never => {
    const named = paths.slice(0, PATHS_NAMED).join(", ");
    const more = paths.length > PATHS_NAMED ? ` and ${paths.length - PATHS_NAMED} more` : "";
    throw new ClocheError(
      "failed_precondition",
      `the memory cannot be saved while processes hold ${what} of the disk open: ${named}${more}; close them`,
      { details: paths.map((path) => ({ path })) },
    );
  };
  if (blockingPaths.length > 0) refuse("deleted sockets, FIFOs or devices", blockingPaths);
  if (Number(deletedBytes) > limits.deletedOpenBytes) {
    const mib = Math.ceil(Number(deletedBytes) / MIB);
    refuse(`${mib} MiB of deleted files (at most ${limits.deletedOpenBytes / MIB} MiB)`, deletedPaths);
  }
}
