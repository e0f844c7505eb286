/**
 * What each operation does, and how it is undone. Both can be repeated, so nothing is written between: after a crash
 * the operation begins again, forward or, if it was turned back, with its undo. The last write of either moves the
 * state and ends the operation in one transaction. `run` throws TurnBack when the host refused; any other error means
 * that the outcome is unknown, and the operation is tried again.
 *
 *   create, fork   machine · publish       back: destroy the machine, then ERROR (or gone, when refused at once);
 *                                          of a group: published, or turned back, all together
 *   suspend        machine · publish       back: RUNNING, SUSPENDED or ERROR, by what became of the machine
 *   resume         machine · publish       back: likewise; never ERROR for a durable sandbox
 *   delete         machine · gone          never turns back
 *
 * If the record's host is lost, create and resume first move the record to another host; a delete ends without the
 * host.
 */
import type { SandboxState, TransitionTrigger } from "@cloche/protocol";
import { MachinePhase } from "@cloche/protocol/host";
import type { OperationKind } from "../database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import { gatewayLimits } from "../limits.ts";
import { follow } from "./decide.ts";
import { lostWhileForked, restartedFrom } from "./host-loss-messages.ts";
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

export interface Saga {
  run(): Promise<void>;
  undo(): Promise<void>;
}

export function sagaOf(kind: OperationKind, world: SagaWorld): Saga {
  switch (kind) {
    case "create":
    case "fork":
      return creation(kind, world);
    case "suspend":
      return suspension(world);
    case "resume":
      return resumption(world);
    case "delete":
      return deletion(world);
  }
}

function creation(kind: "create" | "fork", world: SagaWorld): Saga {
  const from: SandboxState = "SANDBOX_STATE_CREATING";
  const { group } = world.operation.input;
  const isClone = kind === "fork";
  const nowRuns = (record: SandboxRecord): SandboxPatch => ({
    state: follow(from, "created"),
    ...ranNow(world, record),
    runtime: world.machines.get(record.id)?.runtime || record.runtime,
  });
  return {
    async run() {
      await world.step("machine", async () => {
        if (isClone && world.isHostLost) throw new TurnBack("unavailable", lostWhileForked);
        const record = await placed(world);
        if (record === undefined) return;
        await world.inTurn(async () => {
          if (isClone) await bringSource(world, record);
          await runningAfter(world, () =>
            isClone
              ? world.host.fork(record, group?.id ?? "", world.call)
              : world.host.create(record, world.call),
          );
        });
      });
      await world.step("publish", () =>
        group === undefined ? world.end(from, "ok", nowRuns) : world.endTogether(group, from, nowRuns),
      );
    },
    async undo() {
      await destroyMachine(world);
      const { failure: errorMessage, input } = world.operation;
      const isAnswered = group === undefined ? world.refusedCaller() : input.isRefused === true;
      if (isAnswered) return await world.endGone(from);
      await world.end(from, "failed", () => ({ state: follow(from, "create_failed"), errorMessage }));
    },
  };
}

function suspension(world: SagaWorld): Saga {
  const from: SandboxState = "SANDBOX_STATE_SUSPENDING";
  const { sandboxId, input } = world.operation;
  return {
    async run() {
      await world.step("machine", async () => {
        // The owner did not ask for this suspension: edges hold new requests from now on, and the pause lets running
        // ones end.
        if (input.isForMove === true) await world.pause(gatewayLimits.drainGraceMs);
        const diskOnly = input.diskOnly === true;
        await reach(world, MachinePhase.SUSPENDED, () => world.host.suspend(sandboxId, diskOnly, world.call));
      });
      await world.step("publish", () =>
        world.end(from, "ok", () => ({ state: follow(from, "suspended"), errorMessage: "" })),
      );
    },
    async undo() {
      const trigger = afterSuspend[await bringBack(world)];
      const errorMessage = `suspend did not complete: ${world.operation.failure}`;
      await world.end(from, "failed", (record) => ({
        state: follow(from, trigger),
        errorMessage,
        ...(trigger === "suspend_failed" && countedAnew(record, world.nowMs())),
      }));
    },
  };
}

function resumption(world: SagaWorld): Saga {
  const from: SandboxState = "SANDBOX_STATE_RESUMING";
  return {
    async run() {
      await world.step("machine", () => resumeMachine(world));
      const { checkpoint } = world.operation.input;
      await world.step("publish", () =>
        world.end(from, "ok", (record) => ({
          state: follow(from, "resumed"),
          ...ranNow(world, record),
          ...(checkpoint && { errorMessage: restartedFrom(checkpoint) }),
        })),
      );
    },
    async undo() {
      const fate = await afterResume(world);
      const errorMessage = `resume did not complete: ${world.operation.failure}`;
      await world.end(from, "failed", (record) =>
        fate === "running"
          ? { state: follow(from, "resumed"), ...ranNow(world, record) }
          : { state: follow(from, afterFailedResume[fate]), errorMessage },
      );
    },
  };
}

function deletion(world: SagaWorld): Saga {
  return {
    async run() {
      await world.step("machine", () => destroyMachine(world));
      await world.step("gone", () => world.endGone("SANDBOX_STATE_DELETING"));
    },
    async undo() {},
  };
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

const afterFailedResume = { suspended: "resume_failed", lost: "resume_failed_for_good" } as const;
