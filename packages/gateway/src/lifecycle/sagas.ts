/**
 * The steps of each operation. Every step can be repeated, so a forward saga needs no record of its progress: after a crash
 * it begins again. The last step moves the state and ends the operation in one transaction; the undo of the first does the
 * same for a saga that turned back. A step throws TurnBack when the host decided against it; anything else it throws means
 * that nobody knows, and the operation is tried again.
 *
 *   create, fork   record · machine · publish       back: destroy the machine, then ERROR (or gone, when refused at once);
 *                                                   of a group: published, or turned back, all together
 *   suspend        record · machine · publish       back: what the machine then is decides: RUNNING, SUSPENDED or ERROR
 *   resume         record · machine · publish       back: likewise
 *   delete         machine · gone                   never turns back
 */
import type { SagaStep } from "@cloche/base";
import { ClocheError, type SandboxState, type TransitionTrigger } from "@cloche/protocol";
import { type Machine, MachinePhase } from "@cloche/protocol/host";
import type {
  OperationGroup,
  OperationInput,
  OperationKind,
  OperationRecord,
} from "../database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import type { HostMachines } from "../hosts/fleet.ts";
import { follow } from "./decide.ts";
import { type CallContext, type HostCalls, HostError } from "./host-calls.ts";

/** The host decided against this step; the message is public. */
export class TurnBack extends ClocheError {
  static because(error: HostError): TurnBack {
    return new TurnBack(error.code, error.message, { cause: error });
  }
}

/** What the steps work with; made anew for each attempt. */
export interface SagaWorld {
  operation: OperationRecord;
  /** Of the host that the record named when the attempt began; throws `unavailable` while it cannot be reached. */
  readonly host: HostCalls;
  /** That host was declared lost: whatever it still has of the sandbox it destroys before it serves again. */
  readonly isHostLost: boolean;
  machines: HostMachines;
  call: CallContext;
  nowMs: () => number;
  /** The record, or undefined when it is gone. */
  read(): Promise<SandboxRecord | undefined>;
  /**
   * Ends the operation in one transaction with the patch of the record, which must be in state `from`; does nothing when the
   * operation was ended or replaced before.
   */
  end(from: SandboxState, result: string, patch: (record: SandboxRecord) => SandboxPatch): Promise<void>;
  /** Of a group: does `body` when its turn comes. Else at once. */
  inTurn(body: () => Promise<void>): Promise<void>;
  /** As `end`, of all sandboxes of the group in one transaction, once each has come so far; throws what turned the group back. */
  endTogether(
    group: OperationGroup,
    from: SandboxState,
    patch: (record: SandboxRecord) => SandboxPatch,
  ): Promise<void>;
  /** Ends the operation and removes the record. */
  endGone(from: SandboxState): Promise<void>;
  /** True when the caller still waits and takes the failure as its answer: then no record of the attempt stays. */
  tellCaller(): boolean;
}

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
        const record = await world.read();
        if (record === undefined) return;
        await world.inTurn(() => runningAfter(world, () => call(record)));
      },
      async undo() {
        await world.host.destroy(world.operation.sandboxId, world.call);
        world.machines.forget(world.operation.sandboxId);
      },
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
        await runMachine(world);
      },
      async undo(input) {
        const machine = await look(world);
        // Its image stays until a resume has succeeded, and the host undoes what is left of this one before the next: SUSPENDED is true
        // again then, and ERROR would be for good.
        input.fate = machine?.phase === MachinePhase.FAILED ? "suspended" : fateOf(machine);
      },
    },
    {
      name: "publish",
      async do() {
        await world.end(from, "ok", (record) => ({
          state: follow(from, "resumed"),
          ...ranNow(world, record),
        }));
      },
    },
  ];
}

function deletionSteps(world: SagaWorld): Step[] {
  return [
    {
      name: "machine",
      async do() {
        if (world.isHostLost) return;
        await world.host.destroy(world.operation.sandboxId, world.call);
        world.machines.forget(world.operation.sandboxId);
      },
    },
    {
      name: "gone",
      async do() {
        await world.endGone("SANDBOX_STATE_DELETING");
      },
    },
  ];
}

/** A time that on_timeout ended by a suspension counts anew from when the sandbox runs again. */
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
  // A machine that runs may have lost something on its way: its memory, when that could not be restored.
  errorMessage: world.machines.get(record.id)?.errorMessage ?? "",
});

/** From memory image, or from its disk where the machine has none: after a reboot of the host. */
async function runMachine(world: SagaWorld): Promise<void> {
  const { sandboxId } = world.operation;
  const isStopped = world.machines.get(sandboxId)?.phase === MachinePhase.STOPPED;
  if (isStopped) return await startCold(world);
  try {
    await runningAfter(world, () => world.host.resume(sandboxId, world.call));
  } catch (error) {
    if (!(error instanceof TurnBack)) throw error;
    if ((await look(world))?.phase !== MachinePhase.STOPPED) throw error;
    await startCold(world);
  }
}

async function startCold(world: SagaWorld): Promise<void> {
  const record = await world.read();
  if (record === undefined) return;
  await runningAfter(world, () => world.host.create(record, world.call));
}

const runningAfter = (world: SagaWorld, call: () => Promise<Machine>): Promise<void> =>
  reach(world, MachinePhase.RUNNING, call);

/** Calls the host; a refusal counts only when the machine did not get there all the same. */
async function reach(world: SagaWorld, phase: MachinePhase, call: () => Promise<Machine>): Promise<void> {
  let machine: Machine | undefined;
  try {
    machine = await call();
    world.machines.note(machine);
    if (machine.phase === phase) return;
  } catch (error) {
    if (!(error instanceof HostError)) throw error;
    // It was meant for a host or an attempt of before: nothing is decided.
    if (error.code === "aborted") throw error;
    machine = await look(world);
    if (machine?.phase === phase) return;
    throw TurnBack.because(error);
  }
  throw new TurnBack("internal", machine.errorMessage || "the machine did not get there");
}

async function look(world: SagaWorld): Promise<Machine | undefined> {
  const machine = await world.host.find(world.operation.sandboxId, world.call);
  if (machine === undefined) world.machines.forget(world.operation.sandboxId);
  else world.machines.note(machine);
  return machine;
}

type Fate = NonNullable<OperationInput["fate"]>;

/** A suspend that failed ends where the machine is; one that cannot run but kept its disk can be resumed later. */
const afterSuspend: Record<Fate, TransitionTrigger> = {
  running: "suspend_failed",
  suspended: "suspended",
  lost: "crashed",
};

/** Throws while the machine is on its way: the undo is then tried again. */
function fateOf(machine: Machine | undefined): Fate {
  switch (machine?.phase) {
    case MachinePhase.RUNNING:
      return "running";
    case MachinePhase.SUSPENDED:
    case MachinePhase.STOPPED:
      return "suspended";
    case undefined:
    case MachinePhase.FAILED:
    case MachinePhase.DESTROYED:
      return "lost";
    default:
      throw new Error(`the machine is still in phase ${machine?.phase}`);
  }
}

/** After a suspend that failed: makes the machine run again where that can be. */
async function bringBack(world: SagaWorld): Promise<Fate> {
  const fate = fateOf(await look(world));
  if (fate !== "suspended") return fate;
  try {
    await runMachine(world);
    return "running";
  } catch (error) {
    if (!(error instanceof TurnBack)) throw error;
    return fateOf(await look(world));
  }
}
