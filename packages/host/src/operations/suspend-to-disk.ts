// Suspend without memory: services and processes end the gentle way, the disk stays as they left it, and the resume starts cold
// from it. There is no image: a suspended machine without one has its disk in place.
//
//   phase ──▶ flush ──▶ end ──▶ commit
//     │ back: runs on      │ back: it is ended, and starts from its disk when it is asked for
import { open } from "node:fs/promises";
import type { SagaStep } from "@cloche/base";
import type { MachineRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { withoutMemory } from "./cold-start-words.ts";
import { stopMachine } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import { NotUndoneError, runToAnEnd } from "./run-to-an-end.ts";
import { giveBack, stopForGood } from "./suspend-machine.ts";

export interface SuspendToDiskContext {
  id: string;
}

/** Answers when the disk has everything and the machine's processes are gone. One that is suspended stays as it is. */
export async function suspendToDisk(parts: OperationParts, id: string): Promise<MachineRecord> {
  const { machines } = parts;
  const known = machines.require(id, "running", "suspended");
  if (known.phase === "suspended") {
    await giveBack(parts, id);
    return known;
  }
  await requireSpace(parts.poolDir);
  const saga = {
    id,
    kind: "suspend_to_disk",
    begun: [],
    direction: "forward" as const,
    context: { id },
  };
  try {
    await runToAnEnd(parts, saga, suspendToDiskSteps(parts));
  } catch (error) {
    if (error instanceof NotUndoneError) await stopForGood(parts, id);
    throw error;
  }
  return machines.get(id);
}

export function suspendToDiskSteps(parts: OperationParts): SagaStep<SuspendToDiskContext>[] {
  const { machines, agents, log } = parts;
  return [
    {
      name: "phase",
      async do({ id }) {
        await machines.move(id, "suspend", { errorMessage: "" });
      },
      async undo({ id }) {
        // Ended by the undo of a later step.
        if (machines.get(id).phase !== "stopped") await machines.move(id, "suspend_failed");
      },
    },
    {
      name: "flush",
      // An agent that does not answer keeps its machine running. What was answered before is on the disk from here on.
      async do({ id }) {
        await agents.of(machines.get(id)).prepareCheckpoint();
      },
    },
    {
      name: "end",
      async do({ id }) {
        // One that will not end by itself is ended: as in a power cut, after all was flushed. Repeated, its agent may be gone.
        await agents
          .of(machines.get(id))
          .shutdown()
          .catch((err: unknown) =>
            log.warn({ err, sandbox_id: id }, "it does not shut down by itself: it is ended"),
          );
        await stopMachine(parts, id);
        await syncFile(machines.files(machines.get(id)).diskImage);
      },
      async undo({ id }) {
        await stopMachine(parts, id);
        const errorMessage = withoutMemory("a suspend failed, and it did not go on");
        await machines.move(id, "ended", { agentHost: "", errorMessage });
      },
    },
    {
      name: "commit",
      async do({ id }) {
        await machines.move(id, "suspended", { agentHost: "" }, { durable: true });
      },
    },
  ];
}

async function syncFile(path: string): Promise<void> {
  await using file = await open(path, "r");
  await file.sync();
}
