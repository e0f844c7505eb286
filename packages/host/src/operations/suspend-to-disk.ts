/**
 * Suspend without memory: services and processes end gracefully, the disk stays as they left it, and a resume starts cold from
 * that disk. There is no memory image: a suspended machine without an image has its disk in place.
 *
 *   phase ──▶ flush ──▶ end ──▶ commit
 *     │ back: runs on      │ back: it is ended; the next request starts it from its disk
 */
import { open } from "node:fs/promises";
import type { SagaStep } from "@cloche/base";
import type { MachineRecord } from "../machines/machine-record.ts";
import { requireSpace } from "../pool/reserve.ts";
import { withoutMemory } from "./cold-start-messages.ts";
import { stopMachine } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import { NotUndoneError, runToAnEnd } from "./run-to-an-end.ts";
import { giveBack, stopForGood } from "./suspend-machine.ts";

export interface SuspendToDiskContext {
  id: string;
}

/** Resolves when the disk has everything and the machine's processes are gone. A suspended machine stays as it is. */
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
        // The undo of a later step has already ended the machine.
        if (machines.get(id).phase !== "stopped") await machines.move(id, "suspend_failed");
      },
    },
    {
      name: "flush",
      // If the agent does not answer, the machine keeps running. From here on every answered write is on the disk.
      async do({ id }) {
        await agents.of(machines.get(id)).prepareCheckpoint();
      },
    },
    {
      name: "end",
      async do({ id }) {
        // A machine that does not shut down is ended, as in a power cut after a flush. In a repeat its agent may already be gone.
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
