// Steps that several sagas have: a machine's processes come to be, out of its disk or a memory image, and the record says that it runs.
import type { SagaStep } from "@cloche/base";
import type { RunningMachine, SnapshotFiles } from "../drivers/driver.ts";
import type { Parts } from "./parts.ts";

export const DURABLE = { durable: true };

export function machineStep<Context>(
  parts: Parts<"machines" | "drivers">,
  idOf: (context: Context) => string,
): SagaStep<Context> {
  const { machines, drivers } = parts;
  return {
    name: "machine",
    async do(context) {
      const record = machines.get(idOf(context));
      const running = await drivers.toRun(record).create(machines.files(record), record);
      await noteRunning(parts, record.id, running);
    },
    undo: (context) => stopMachine(parts, idOf(context)),
  };
}

export function restoreStep<Context>(
  parts: Parts<"machines" | "drivers">,
  plan: (context: Context) => { id: string; from: SnapshotFiles; controlSecret?: string | undefined },
): SagaStep<Context> {
  const { machines, drivers } = parts;
  return {
    name: "machine",
    async do(context) {
      const { id, from, controlSecret } = plan(context);
      const record = machines.get(id);
      const running = await drivers.toRun(record).restore(machines.files(record), from, record);
      await machines.change(id, {
        agentHost: running.agentHost,
        agentPort: running.agentPort,
        ...(controlSecret === undefined ? {} : { controlSecret }),
        ...(running.blockDevice === undefined ? {} : { blockDevice: running.blockDevice }),
      });
    },
    undo: (context) => stopMachine(parts, plan(context).id),
  };
}

export function commitStep<Context>(
  parts: Parts<"machines">,
  idOf: (context: Context) => string,
): SagaStep<Context> {
  return {
    name: "commit",
    do: (context) => commit(parts, idOf(context), DURABLE),
  };
}

export async function commit(
  { machines }: Parts<"machines">,
  id: string,
  options: { durable: boolean },
): Promise<void> {
  await machines.move(id, "started", { errorMessage: "" }, options);
}

/** From here on a start finds a machine with a disk, which it starts whatever became of it (recovery.ts). */
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
    channel: 1 as const,
    ...(running.blockDevice === undefined ? {} : { blockDevice: running.blockDevice }),
  };
  await machines.change(id, fields, options);
}

/** Repeatable; of a machine that is not there nothing is stopped. */
export async function stopMachine(
  { machines, drivers }: Parts<"machines" | "drivers">,
  id: string,
): Promise<void> {
  const record = machines.find(id);
  if (record) await drivers.of(record).stopMachine(machines.files(record));
}
