/**
 * Recovery at start: finishes or undoes unfinished sagas, adopts running machines, brings every other machine into the state of
 * its record, and removes files and processes of no record. Each machine is recovered in its own turn: a machine that hangs delays
 * neither the others nor the start, and a call for it waits for its turn.
 */
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { runSaga, type SagaRecord, type SagaStep, SagaUndoError, Turns } from "@cloche/base";
import { applyEgress } from "./apply-egress.ts";
import { ClocheError } from "@cloche/protocol";
import { createSteps } from "./create-machine.ts";
import { destroyMachine } from "./destroy-machine.ts";
import { importSteps } from "./import-machine.ts";
import { dropSnapshots } from "./memory-images.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { Parts } from "./parts.ts";
import { resumeSteps } from "./resume-machine.ts";
import { giveUp, type RestartBudget, startAgain } from "./restart-after-crash.ts";
import { startSteps } from "./start-machine.ts";
import { withoutMemory } from "./cold-start-messages.ts";
import { finishRestore } from "./restore-checkpoint.ts";
import { type ForkContext, forkSteps } from "./fork-machine.ts";
import type { RunningMachine } from "../drivers/driver.ts";
import type { MachineRecord } from "../machines/machine-record.ts";
import { giveBack, suspendSteps } from "./suspend-machine.ts";
import { suspendToDiskSteps } from "./suspend-to-disk.ts";

type Steps = (parts: OperationParts) => SagaStep<never>[];
const sagas: Record<string, Steps> = {
  create: createSteps as Steps,
  start: startSteps as Steps,
  suspend: suspendSteps as Steps,
  suspend_to_disk: suspendToDiskSteps as Steps,
  resume: resumeSteps as Steps,
  fork: forkSteps as Steps,
  import: importSteps as Steps,
};

/** Machines recovered at once. A machine that takes longer than placeMs is no longer counted. */
const atOnceMax = 8;
const placeMs = 2_000;
/** A start waits this long for its machines, so that the first answers are true for all machines that do not hang. */
const patienceLimitMs = 15_000;

export interface Recovery {
  /** Settles when every machine is recovered, which may be after `recover` has answered. Never rejects. */
  finished: Promise<void>;
}

/** Loads every record, and removes files and processes that belong to none. Touches no machine that has a record. */
export async function adoptRecordsAndSweep(
  parts: Parts<"machines" | "drivers" | "log" | "poolDir">,
): Promise<void> {
  const { machines, drivers, log, poolDir } = parts;
  const { records, strays } = await machines.store.load();
  for (const record of records) machines.adopt(record);
  for (const id of strays) await rm(join(poolDir, "machines", id), { recursive: true, force: true });
  for (const driver of drivers.all()) {
    const swept = await driver.sweep(new Set(records.map(({ id }) => id)));
    if (swept.length > 0) log.info({ swept }, "removed what belongs to no machine");
  }
}

/** `coldStart`: called for each machine to start cold, which may take longer than adoption. */
export async function recover(parts: OperationParts, coldStart: (id: string) => void): Promise<Recovery> {
  const { machines, queue, journal, clock, log } = parts;
  const records = machines.all();
  const pending = new Map((await journal.pending()).map((saga) => [saga.id, saga]));
  await parts.snapshots.sweep([...pending.values()].flatMap((saga) => snapshotOf(saga) ?? []));
  await parts.groups.sweep();
  // A cut-off fork may need a snapshot of its source, so sources are recovered first.
  const isFork = (id: string): boolean => pending.get(id)?.kind === "fork";
  const all = [...new Set([...pending.keys(), ...records.map(({ id }) => id)])];
  const ids = [...all.filter((id) => !isFork(id)), ...all.filter(isFork)];
  const places = new Turns(atOnceMax);
  // Queued before the start answers, so that no other call for a machine comes first.
  const turns = ids.map((id) =>
    queue.run(id, () =>
      places.patiently(clock, placeMs, () => recoverOne(parts, id, pending.get(id), coldStart)),
    ),
  );
  const finished = Promise.all(turns).then(() => undefined);
  const inTime = new AbortController();
  void finished.then(() => inTime.abort());
  await Promise.race([finished, clock.sleep(patienceLimitMs, inTime.signal).catch(() => undefined)]);
  if (!inTime.signal.aborted)
    log.warn({ sandbox_ids: queue.keys() }, "some machines are not recovered yet: starting without");
  return { finished };
}

/** Never throws: a machine that cannot be recovered becomes failed. */
async function recoverOne(
  parts: OperationParts,
  id: string,
  saga: SagaRecord<unknown> | undefined,
  coldStart: (id: string) => void,
): Promise<void> {
  const { machines, log } = parts;
  try {
    if (saga) await finish(parts, saga);
    const record = machines.find(id);
    if (!record) return;
    if (await settle(parts, record)) coldStart(id);
    if (machines.find(id)) await tidy(parts, id);
  } catch (error) {
    log.error({ err: error, sandbox_id: id }, "machine could not be adopted");
    if (!machines.find(id)) return;
    await giveUp(parts, id, ClocheError.from(error).message);
  }
}

const snapshotOf = (saga: SagaRecord<unknown>): ForkContext["snapshot"] =>
  saga.kind === "fork" ? (saga.context as ForkContext).snapshot : undefined;

/** Never throws. */
export async function coldStart(parts: OperationParts, budget: RestartBudget, id: string): Promise<void> {
  const { machines, queue } = parts;
  await queue.run(id, async () => {
    const record = machines.find(id);
    if (record?.phase !== "stopped") return;
    await startAgain(parts, budget, id, record.errorMessage).catch((error: unknown) =>
      giveUp(parts, id, `could not be started from its disk: ${ClocheError.from(error).message}`),
    );
  });
}

async function finish(parts: OperationParts, saga: SagaRecord<unknown>): Promise<void> {
  const { journal, log } = parts;
  const steps = sagas[saga.kind]?.(parts);
  if (!steps) throw new Error(`the journal names an unknown operation ${saga.kind}`);
  try {
    await runSaga(saga as SagaRecord<never>, steps, journal);
    log.info({ operation: saga.kind, id: saga.id }, "finished an operation cut off by a crash");
  } catch (error) {
    const level = error instanceof SagaUndoError ? "error" : "warn";
    log[level]({ err: error, operation: saga.kind, id: saga.id }, "undid an operation");
  } finally {
    const snapshot = snapshotOf(saga);
    if (snapshot) await parts.snapshots.release(snapshot);
  }
}

/** Adopts a living machine and thaws it. Undefined if it is gone or cannot be thawed: then it is started from its disk. */
async function adoptMoving(
  { machines, drivers, log }: Parts<"machines" | "drivers" | "log">,
  record: MachineRecord,
): Promise<RunningMachine | undefined> {
  const driver = drivers.of(record);
  const files = machines.files(record);
  const running = await driver.adopt(files);
  if (!running) return undefined;
  try {
    await driver.unblock(files);
    return running;
  } catch (error) {
    log.warn({ err: error, sandbox_id: record.id }, "a machine does not go on: it is ended");
    return undefined;
  }
}

/** Brings one machine into the state of its record. Answers whether to start it cold. */
async function settle(parts: OperationParts, record: MachineRecord): Promise<boolean> {
  const { machines, drivers } = parts;
  const driver = drivers.of(record);
  const files = machines.files(record);
  switch (record.phase) {
    case "running":
    case "suspending": {
      const running = await adoptMoving(parts, record);
      if (!running) {
        await driver.stopMachine(files);
        const errorMessage = withoutMemory("its machine had ended when the service started");
        await machines.move(record.id, "ended", { errorMessage });
        // Undo a restore that was under way: the sandbox starts from the disk that its record names.
        await machines.dropField(record.id, "restore");
        return true;
      }
      await machines.move(record.id, "adopted", {
        agentHost: running.agentHost,
        agentPort: running.agentPort,
      });
      // A crash may have come after a new policy was recorded and before it was in force.
      await applyEgress(parts, machines.get(record.id));
      await finishRestore(parts, record.id);
      return false;
    }
    case "starting":
      // A reboot took its saga. A machine that never ran has nothing to keep; a machine that ran has its disk.
      await driver.stopMachine(files);
      if (record.controlSecret === "") await machines.forget(record.id);
      else await machines.move(record.id, "ended");
      return record.controlSecret !== "";
    case "resuming":
      await driver.stopMachine(files);
      await machines.move(record.id, "resume_failed");
      return false;
    case "suspended":
      await giveBack(parts, record.id);
      return false;
    case "failed":
      await driver.stopMachine(files);
      return false;
    case "stopped":
      await driver.stopMachine(files);
      return true;
    case "destroying":
      await destroyMachine(parts, record.id);
      return false;
  }
}

/** Removes images left by an operation that was cut off: all that the record does not name. */
async function tidy(parts: Parts<"machines">, id: string): Promise<void> {
  const { machines } = parts;
  const { phase, snapshot } = machines.get(id);
  if (phase === "running" && snapshot !== undefined) await dropSnapshots(parts, id);
  const record = machines.get(id);
  const { dir } = machines.files(record);
  for (const name of await readdir(dir)) {
    const disk = /^disk-\d+\.ext4/.test(name) && name !== record.disk && name !== record.restore?.disk;
    const image = name.startsWith("snapshot-") && name !== record.snapshot;
    if (disk || image) await rm(join(dir, name), { recursive: true, force: true });
  }
}
