/** Suspend: saves memory and disk of a machine at one instant in its directory, then ends its processes. */
import { mkdir, rm } from "node:fs/promises";
import { type SagaStep, syncDirectory } from "@cloche/base";
import type { SnapshotFiles } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { snapshotHooks } from "./snapshot-hooks.ts";
import { snapshotOf } from "./memory-images.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { Parts } from "./parts.ts";
import { NotUndoneError, runToAnEnd } from "./run-to-an-end.ts";
import { withoutMemory } from "./cold-start-messages.ts";

export interface SuspendContext {
  id: string;
  /** Directory name in the machine's directory. */
  snapshot: string;
}

const giveBackTries = 3;

/**
 * Calls `suspended` when memory and disk are durable and no process of the machine can run any more; resolves when all that it held is
 * freed. What cannot be freed is freed by the next operation of the machine, or at the next start.
 */
export async function suspendMachine(
  parts: OperationParts,
  id: string,
  suspended: (record: MachineRecord) => void = () => undefined,
): Promise<MachineRecord> {
  const { machines, drivers } = parts;
  const known = machines.require(id, "running", "suspended");
  if (known.phase === "suspended") {
    await giveBack(parts, id);
    return known;
  }
  await requireSpace(parts.poolDir);
  const context: SuspendContext = { id, snapshot: `snapshot-${known.epoch}` };
  const saga = { id, kind: "suspend", begun: [], direction: "forward" as const, context };
  try {
    await runToAnEnd(parts, saga, suspendSteps(parts));
  } catch (error) {
    if (error instanceof NotUndoneError) await stopForGood(parts, id);
    throw error;
  }
  const record = machines.get(id);
  await drivers.of(record).endNow(machines.files(record));
  suspended(record);
  await giveBack(parts, id);
  return machines.get(id);
}

export function suspendSteps(parts: OperationParts): SagaStep<SuspendContext>[] {
  const { machines, drivers } = parts;
  const files = (context: SuspendContext): SnapshotFiles =>
    snapshotOf(parts, machines.get(context.id), context.snapshot);
  return [
    {
      name: "phase",
      async do({ id }) {
        await machines.move(id, "suspend", { errorMessage: "" });
      },
      async undo({ id }) {
        await machines.move(id, "suspend_failed");
      },
    },
    {
      name: "snapshot",
      async do(context) {
        const record = machines.get(context.id);
        const driver = drivers.of(record);
        // Repeated after a crash: first let the machine go on and remove the half-written image.
        await driver.unblock(machines.files(record));
        await rm(files(context).dir, { recursive: true, force: true });
        await mkdir(files(context).dir, { mode: 0o700 });
        await driver.snapshot(
          machines.files(record),
          files(context),
          { stop: true },
          snapshotHooks(parts, record),
        );
        await syncDirectory(machines.files(record).dir);
      },
      async undo(context) {
        const record = machines.get(context.id);
        await drivers.of(record).unblock(machines.files(record));
        await rm(files(context).dir, { recursive: true, force: true });
      },
    },
    {
      name: "commit",
      // From here on the image is the machine. Processes that still run are stopped now or at the next start.
      async do({ id, snapshot }) {
        const snapshotSecret = machines.get(id).controlSecret;
        const fields = { snapshot, snapshotSecret, agentHost: "" };
        await machines.move(id, "suspended", fields, { durable: true });
      },
    },
  ];
}

/** Ends a machine that cannot be made to go on. The next request starts it from its disk. */
export async function stopForGood(
  { machines, drivers, journal, log }: Parts<"machines" | "drivers" | "journal" | "log">,
  id: string,
): Promise<void> {
  const record = machines.get(id);
  const why = "a suspend failed, and it did not go on";
  try {
    await drivers.of(record).stopMachine(machines.files(record));
    await machines.move(id, "ended", { agentHost: "", errorMessage: withoutMemory(why) });
    await journal.remove(id);
  } catch (err) {
    log.error({ err, sandbox_id: id }, "a machine that did not resume could not be stopped");
    await machines.move(id, "gave_up", { errorMessage: why });
  }
}

/** Frees what a suspended machine still holds: processes, and the disk that its image replaces. Repeatable. */
export async function giveBack(
  { machines, drivers }: Parts<"machines" | "drivers">,
  id: string,
): Promise<void> {
  const record = machines.get(id);
  const files = machines.files(record);
  for (let attempt = 1; ; attempt += 1) {
    try {
      await drivers.of(record).stopMachine(files);
      break;
    } catch (error) {
      // The image is committed, so there is no undo: try again, here, at the next suspend or at the next start.
      if (attempt === giveBackTries) throw error;
    }
  }
  if (record.snapshot !== undefined) await rm(files.diskImage, { force: true });
}
