// Steps that several sagas have: a machine's processes come to be, out of its disk or a memory image, and the record says that it runs.
import type { SagaStep } from "@cloche/base";
import type { RunningMachine, SnapshotFiles } from "../drivers/driver.ts";
import type { Machines } from "../machines/machines.ts";

export const DURABLE = { durable: true };

export function machineStep<Context>(
  machines: Machines,
  idOf: (context: Context) => string,
): SagaStep<Context> {
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

export function commitStep<Context>(
  machines: Machines,
  idOf: (context: Context) => string,
): SagaStep<Context> {
  return {
    name: "commit",
    do: (context) => commit(machines, idOf(context), DURABLE),
  };
}

export async function commit(machines: Machines, id: string, options: { durable: boolean }): Promise<void> {
  await machines.move(id, "started", { errorMessage: "" }, options);
}

/** From here on a start finds a machine with a disk, which it starts whatever became of it (recovery.ts). */
export async function noteRunning(
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

export async function stopMachine(machines: Machines, id: string): Promise<void> {
  const record = machines.find(id);
  if (record) await machines.driver(record).stopMachine(machines.files(record));
}
