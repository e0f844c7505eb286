/**
 * Steps shared by several sagas: start a machine's processes from its disk or a memory image, and record that it runs.
 */
import { allDone, type SagaStep } from "@cloche/base";
import { syncDisk } from "../disk/disk.ts";
import type { MachineFiles, RunningMachine, SnapshotFiles } from "../drivers/driver.ts";
import type { Native } from "../sys/native.ts";
import type { Parts } from "./parts.ts";

export const durableChange = { durable: true };

export function machineStep<Context>(
  parts: Parts<"machines" | "drivers" | "native">,
  idOf: (context: Context) => string,
): SagaStep<Context> {
  const { machines, drivers, native } = parts;
  return {
    name: "machine",
    async do(context) {
      const record = machines.get(idOf(context));
      const files = machines.files(record);
      const start = async (): Promise<void> =>
        noteRunning(parts, record.id, await drivers.toRun(record).create(files, record));
      await withDurableDisk(native, files, start);
    },
    undo: (context) => stopMachine(parts, idOf(context)),
  };
}

export function restoreStep<Context>(
  parts: Parts<"machines" | "drivers" | "native">,
  plan: (context: Context) => { id: string; from: SnapshotFiles; controlSecret?: string | undefined },
): SagaStep<Context> {
  const { machines, drivers, native } = parts;
  return {
    name: "machine",
    async do(context) {
      const { id, from, controlSecret } = plan(context);
      const record = machines.get(id);
      const files = machines.files(record);
      const restore = async (): Promise<void> => {
        const running = await drivers.toRun(record).restore(files, from, record);
        await machines.change(id, {
          agentHost: running.agentHost,
          agentPort: running.agentPort,
          ...(controlSecret === undefined ? {} : { controlSecret }),
          ...(running.blockDevice === undefined ? {} : { blockDevice: running.blockDevice }),
        });
      };
      await withDurableDisk(native, files, restore);
    },
    undo: (context) => stopMachine(parts, plan(context).id),
  };
}

/** Starts a machine while its disk, which may be a fresh copy, becomes durable. The step `commit` comes later. */
const withDurableDisk = (
  native: Native,
  { diskImage }: MachineFiles,
  start: () => Promise<void>,
): Promise<void> => allDone([start(), syncDisk(native, diskImage)]);

export function commitStep<Context>(
  parts: Parts<"machines">,
  idOf: (context: Context) => string,
): SagaStep<Context> {
  return {
    name: "commit",
    do: (context) => commit(parts, idOf(context), durableChange),
  };
}

export async function commit(
  { machines }: Parts<"machines">,
  id: string,
  options: { durable: boolean },
): Promise<void> {
  await machines.move(id, "started", { errorMessage: "" }, options);
}

/** From here on the record has a control secret: after a crash, recovery.ts starts the machine from its disk instead of forgetting it. */
export async function noteRunning(
  { machines }: Parts<"machines">,
  id: string,
  running: RunningMachine,
  options: { durable?: boolean } = {},
): Promise<void> {
  const fields = {
    agentHost: running.agentHost,
    agentPort: running.agentPort,
    controlSecret: running.bootstrapSecret ?? "",
    ...(running.blockDevice === undefined ? {} : { blockDevice: running.blockDevice }),
  };
  await machines.change(id, fields, options);
}

/** Repeatable. Does nothing for an unknown machine. */
export async function stopMachine(
  { machines, drivers }: Parts<"machines" | "drivers">,
  id: string,
): Promise<void> {
  const record = machines.find(id);
  if (record) await drivers.of(record).stopMachine(machines.files(record));
}
