/**
 * Decides, without side effects, what a request means for a sandbox, and what to do when a record and its machine
 * differ. Uses the transition table of @cloche/protocol; lifecycle.ts and reconciler.ts act. Every denial names the
 * sandbox's state.
 */
import {
  ClocheError,
  nextState,
  remedyOf,
  type SandboxState,
  stateWithReason,
  type TransitionTrigger,
} from "@cloche/protocol";
import { MachinePhase } from "@cloche/protocol/host";
import type { OperationKind } from "../database/operations.ts";

export type LifecycleRequest =
  | "suspend"
  | "resume"
  | "delete"
  | "fork"
  | "issue_token"
  | "update"
  | "update_egress";

export type Verdict =
  /** Allowed, and nothing changes: answer the sandbox as it is. */
  | { kind: "unchanged" }
  | { kind: "begin"; to: SandboxState; operation: OperationKind }
  | { kind: "deny"; error: ClocheError };

interface Subject {
  id: string;
  state: SandboxState;
  /** Why it is in its state; empty: it says nothing of it. */
  errorMessage?: string;
}

/** The state after these triggers, one after another. Throws when the table forbids one: a bug, not a bad request. */
export function follow(state: SandboxState, ...triggers: TransitionTrigger[]): SandboxState {
  return triggers.reduce((from, trigger) => {
    const to = nextState(from, trigger);
    if (to === undefined) throw new Error(`the transition table has no ${trigger} from ${from}`);
    return to;
  }, state);
}

/** Decides a request by the sandbox's state (spec/contract.md, Gateway, "Required source state"). */
export function decideRequest(sandbox: Subject, request: LifecycleRequest): Verdict {
  const { state } = sandbox;
  switch (request) {
    case "suspend":
      if (state === "SANDBOX_STATE_SUSPENDED" || state === "SANDBOX_STATE_SUSPENDING") return unchanged;
      return begin(sandbox, "suspend", "suspend", "SuspendSandbox needs SANDBOX_STATE_RUNNING");
    case "resume":
      if (state === "SANDBOX_STATE_RUNNING" || state === "SANDBOX_STATE_RESUMING") return unchanged;
      return begin(sandbox, "resume", "resume", "ResumeSandbox needs SANDBOX_STATE_SUSPENDED");
    case "delete":
      if (state === "SANDBOX_STATE_DELETING") return unchanged;
      return begin(sandbox, "delete", "delete", "");
    case "fork":
      if (state === "SANDBOX_STATE_RUNNING" || state === "SANDBOX_STATE_SUSPENDED") return unchanged;
      return deny(sandbox, "ForkSandbox needs SANDBOX_STATE_RUNNING or SANDBOX_STATE_SUSPENDED");
    case "issue_token":
      if (state !== "SANDBOX_STATE_DELETING" && state !== "SANDBOX_STATE_ERROR") return unchanged;
      return deny(
        sandbox,
        "tokens are issued in any state but SANDBOX_STATE_DELETING and SANDBOX_STATE_ERROR",
      );
    case "update":
      if (state !== "SANDBOX_STATE_DELETING") return unchanged;
      return deny(sandbox, "UpdateSandbox works in any state but SANDBOX_STATE_DELETING");
    case "update_egress":
      if (hasMachine(state)) return unchanged;
      return deny(sandbox, "egress can be changed once the sandbox has run, until it is deleted or fails");
  }
}

/** Whether the host has a machine of a sandbox in this state, running or kept. */
export const hasMachine = (state: SandboxState): boolean =>
  state !== "SANDBOX_STATE_CREATING" && state !== "SANDBOX_STATE_DELETING" && state !== "SANDBOX_STATE_ERROR";

const unchanged: Verdict = { kind: "unchanged" };

function begin(
  sandbox: Subject,
  trigger: TransitionTrigger,
  operation: OperationKind,
  needs: string,
): Verdict {
  const to = nextState(sandbox.state, trigger);
  return to === undefined ? deny(sandbox, needs) : { kind: "begin", to, operation };
}

function deny(sandbox: Subject, needs: string): Verdict {
  const { id, state, errorMessage } = sandbox;
  const remedy = remedyOf(state, id);
  const is = `sandbox ${JSON.stringify(id)} is in ${stateWithReason(state, errorMessage)}`;
  const message = `${is}; ${needs}${remedy === "" ? "" : `; ${remedy}`}`;
  return { kind: "deny", error: new ClocheError("failed_precondition", message) };
}

export type MachineSight = MachinePhase | "absent";

/** What to do about a record and its machine when no operation is under way. */
export type Remedy =
  | { kind: "none" }
  /** Resume the machine from its memory image or disk: the record goes through SUSPENDED to RESUMING. */
  | { kind: "bring_back"; to: SandboxState }
  /** The machine runs although the record says otherwise: correct the record. */
  | { kind: "adopt"; to: SandboxState }
  | { kind: "fail"; to: SandboxState; reason: string }
  /** The record is in a state that only an operation can leave, but has no operation: begin it again. */
  | { kind: "redo"; operation: OperationKind };

const none: Remedy = { kind: "none" };

export function decideRemedy(state: SandboxState, sourceIsLive: boolean, sight: MachineSight): Remedy {
  switch (state) {
    case "SANDBOX_STATE_CREATING":
      return { kind: "redo", operation: sourceIsLive ? "fork" : "create" };
    case "SANDBOX_STATE_SUSPENDING":
      return { kind: "redo", operation: "suspend" };
    case "SANDBOX_STATE_RESUMING":
      return { kind: "redo", operation: "resume" };
    case "SANDBOX_STATE_DELETING":
      return { kind: "redo", operation: "delete" };
    case "SANDBOX_STATE_RUNNING":
      return remedyWhileRunning(sight);
    case "SANDBOX_STATE_SUSPENDED":
      // A missing or failed machine is reported by the next resume, because the absence may pass.
      return sight === MachinePhase.RUNNING
        ? { kind: "adopt", to: follow(state, "resume", "resumed") }
        : none;
    case "SANDBOX_STATE_ERROR":
      return none;
  }
}

/** The remedy, now that the host is back, for a sandbox that was set to ERROR because it ran when its host was lost. */
export function decideReturn(sight: MachineSight): Remedy {
  const state = follow("SANDBOX_STATE_ERROR", "host_returned");
  const remedy = remedyWhileRunning(sight);
  if (sight === MachinePhase.RUNNING) return { kind: "adopt", to: state };
  return remedy.kind === "fail" ? none : remedy;
}

function remedyWhileRunning(sight: MachineSight): Remedy {
  const state = "SANDBOX_STATE_RUNNING";
  switch (sight) {
    case MachinePhase.RUNNING:
    case MachinePhase.STARTING:
    case MachinePhase.RESUMING:
    case MachinePhase.SUSPENDING:
    case MachinePhase.UNSPECIFIED:
      return none;
    case MachinePhase.STOPPED:
    case MachinePhase.SUSPENDED:
      return { kind: "bring_back", to: follow(state, "suspend", "suspended", "resume") };
    case MachinePhase.FAILED:
      return {
        kind: "fail",
        to: follow(state, "crashed"),
        reason: "its machine ended, and the host says no more",
      };
    case MachinePhase.DESTROYED:
    case "absent":
      return {
        kind: "fail",
        to: follow(state, "crashed"),
        reason: "its machine is gone from its host: removed there, or its disk was lost",
      };
  }
}
