/**
 * The steps of each operation. Every step can be repeated, so a forward saga needs no record of its progress: after a
 * crash it begins again. The last step moves the state and ends the operation in one transaction; the undo of the first
 * does the same for a saga that turned back. A step throws TurnBack when the host refused it; any other error means
 * that the outcome is unknown, and the operation is tried again.
 *
 *   create, fork   record · machine · publish       back: destroy the machine, then ERROR (or gone, when refused at once);
 *                                                   of a group: published, or turned back, all together
 *   suspend        record · machine · publish       back: RUNNING, SUSPENDED or ERROR, by what became of the machine
 *   resume         record · machine · publish       back: likewise; never ERROR for a durable sandbox
 *   delete         machine · gone                   never turns back
 *
 * If the record's host is lost, create and resume first move the record to another host; a delete ends without the
 * host.
 */
import type { SagaStep } from "@cloche/base";
import type { SandboxState, TransitionTrigger } from "@cloche/protocol";
import { type Machine, MachinePhase } from "@cloche/protocol/host";
import type { OperationInput, OperationKind } from "../database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import { gatewayLimits } from "../limits.ts";
import { follow } from "./decide.ts";
import { lostWhileForked, restartedFrom } from "./host-loss-words.ts";
import {
  afterResume,
  bringBack,
  bringSource,
  destroyMachine,
  type Fate,
  placed,
  reach,
  resumeMachine,
  runningAfter,
} from "./machine-steps.ts";
import { type SagaWorld, TurnBack } from "./saga-world.ts";

type Step = SagaStep<OperationInput>;

export function stepsOf(kind: OperationKind, world: SagaWorld): Step[] {
  switch (kind) {
    case "create":
    case "fork":
      return creationSteps(kind, world);
    case "suspend":
      return suspendSteps(world);
    case "resume":
      return resumeSteps(world);
    case "delete":
      return deletionSteps(world);
  }
}

function creationSteps(kind: "create" | "fork", world: SagaWorld): Step[] {
  const from: SandboxState = "SANDBOX_STATE_CREATING";
  const { group } = world.operation.input;
  const call = (record: SandboxRecord): Promise<Machine> =>
    kind === "fork"
      ? world.host.fork(record, group?.id ?? "", world.call)
      : world.host.create(record, world.call);
  const nowRuns = (record: SandboxRecord): SandboxPatch => ({
    state: follow(from, "created"),
    ...ranNow(world, record),
    runtime: world.machines.get(record.id)?.runtime || record.runtime,
  });
  return [
    {
      name: "record",
      async do() {},
      async undo(input) {
        const isTold = group === undefined ? world.tellCaller() : input.isRefused === true;
        if (isTold) return await world.endGone(from);
        const errorMessage = world.operation.failure;
        await world.end(from, "failed", () => ({ state: follow(from, "create_failed"), errorMessage }));
      },
    },
    {
      name: "machine",
      async do() {
        const isClone = kind === "fork";
        if (isClone && world.isHostLost) throw new TurnBack("unavailable", lostWhileForked);
        const record = await placed(world);
        if (record === undefined) return;
        await world.inTurn(async () => {
          if (isClone) await bringSource(world, record);
          await runningAfter(world, () => call(record));
        });
      },
      undo: () => destroyMachine(world),
    },
    {
      name: "publish",
      async do() {
        if (group === undefined) await world.end(from, "ok", nowRuns);
        else await world.endTogether(group, from, nowRuns);
      },
    },
  ];
}

function suspendSteps(world: SagaWorld): Step[] {
  const from: SandboxState = "SANDBOX_STATE_SUSPENDING";
  const { sandboxId } = world.operation;
  return [
    {
      name: "record",
      async do() {},
      async undo(input) {
        const errorMessage = `suspend did not complete: ${world.operation.failure}`;
        const trigger = afterSuspend[input.fate ?? "lost"];
        await world.end(from, "failed", (record) => ({
          state: follow(from, trigger),
          errorMessage,
          ...(trigger === "suspend_failed" && countedAnew(record, world.nowMs())),
        }));
      },
    },
    {
      name: "machine",
      async do() {
        const diskOnly = world.operation.input.diskOnly === true;
        // The owner did not ask for this suspension: edges hold new requests from now on, and the pause lets running
        // ones end.
        if (world.operation.input.isForMove === true) await world.pause(gatewayLimits.drainGraceMs);
        await reach(world, MachinePhase.SUSPENDED, () => world.host.suspend(sandboxId, diskOnly, world.call));
      },
      async undo(input) {
        input.fate = await bringBack(world);
      },
    },
    {
      name: "publish",
      async do() {
        await world.end(from, "ok", () => ({ state: follow(from, "suspended"), errorMessage: "" }));
      },
    },
  ];
}

function resumeSteps(world: SagaWorld): Step[] {
  const from: SandboxState = "SANDBOX_STATE_RESUMING";
  return [
    {
      name: "record",
      async do() {},
      async undo(input) {
        const failure = `resume did not complete: ${world.operation.failure}`;
        await world.end(from, "failed", (record) => {
          switch (input.fate) {
            case "running":
              return { state: follow(from, "resumed"), ...ranNow(world, record) };
            case "suspended":
              return { state: follow(from, "resume_failed"), errorMessage: failure };
            default:
              return { state: follow(from, "resume_failed_for_good"), errorMessage: failure };
          }
        });
      },
    },
    {
      name: "machine",
      async do() {
        await resumeMachine(world);
      },
      async undo(input) {
        input.fate = await afterResume(world);
      },
    },
    {
      name: "publish",
      async do() {
        const { checkpoint } = world.operation.input;
        const words = checkpoint && { errorMessage: restartedFrom(checkpoint) };
        await world.end(from, "ok", (record) => ({
          state: follow(from, "resumed"),
          ...ranNow(world, record),
          ...words,
        }));
      },
    },
  ];
}

function deletionSteps(world: SagaWorld): Step[] {
  return [
    {
      name: "machine",
      do: () => destroyMachine(world),
    },
    {
      name: "gone",
      async do() {
        await world.endGone("SANDBOX_STATE_DELETING");
      },
    },
  ];
}

/** A timeout that ended in a suspension (on_timeout) starts again when the sandbox runs again. */
export const countedAnew = (
  { onTimeout, timeoutSeconds, expiresAtMs }: SandboxRecord,
  nowMs: number,
): SandboxPatch =>
  onTimeout === "suspend" && timeoutSeconds > 0 && expiresAtMs === null
    ? { expiresAtMs: nowMs + timeoutSeconds * 1_000 }
    : {};

const ranNow = (world: SagaWorld, record: SandboxRecord): SandboxPatch => ({
  ...countedAnew(record, world.nowMs()),
  firstRanAtMs: record.firstRanAtMs ?? world.nowMs(),
  // A running machine may report a loss, such as memory that could not be restored.
  errorMessage: world.machines.get(record.id)?.errorMessage ?? "",
});

/** After a failed suspend the state follows the machine: one that cannot run but kept its disk can be resumed later. */
const afterSuspend: Record<Fate, TransitionTrigger> = {
  running: "suspend_failed",
  suspended: "suspended",
  lost: "crashed",
};
