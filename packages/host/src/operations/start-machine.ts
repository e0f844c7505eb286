/** Cold start: boots a stopped machine from its disk and starts the services that ran. */
import { runSaga, type SagaStep } from "@cloche/base";
import type { MachineRecord } from "../machines/machine-record.ts";
import { withServices } from "./cold-start-messages.ts";
import { durableChange, machineStep } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";

export interface StartContext {
  id: string;
  /** The record's message about its end; empty: nothing is wrong. */
  words: string;
  /** Which of the services that ran before were started, and which failed. */
  services?: { started: string[]; failed: string[] };
}

/** Starts a stopped machine cold, with the services that ran. The record keeps its message of why the machine had stopped. */
export async function startMachine(parts: OperationParts, id: string): Promise<MachineRecord> {
  const known = parts.machines.require(id, "stopped", "running");
  if (known.phase === "running") return known;
  const context: StartContext = { id, words: known.errorMessage };
  const record = { id, kind: "start", begun: [], direction: "forward" as const, context };
  await runSaga(record, startSteps(parts), parts.journal);
  return parts.machines.get(id);
}

export function startSteps(parts: OperationParts): SagaStep<StartContext>[] {
  const { machines, agents } = parts;
  return [
    {
      name: "phase",
      async do({ id }) {
        await machines.move(id, "start");
      },
      async undo({ id, words }) {
        await machines.move(id, "start_failed", { errorMessage: words });
      },
    },
    machineStep(parts, ({ id }) => id),
    {
      name: "assign",
      async do(context) {
        context.services = await agents.assign(context.id, { renewIdentity: false, startServices: true });
      },
    },
    {
      name: "commit",
      async do({ id, words, services }) {
        const errorMessage = words === "" || services === undefined ? words : withServices(words, services);
        await machines.move(id, "started", { errorMessage }, durableChange);
      },
    },
  ];
}
