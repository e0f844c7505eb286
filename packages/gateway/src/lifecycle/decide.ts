/**
 * What a request, or what a machine was found doing, means for a sandbox: decided here, purely, over the transition table of
 * @cloche/protocol; done by lifecycle.ts and reconciler.ts. Every denial names the state it found.
 */
import { ClocheError, nextState, type SandboxState, type TransitionTrigger } from "@cloche/protocol";
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
}

/** Where these triggers lead one after another; throws when the table forbids one: that is a bug, not a request. */
export function follow(state: SandboxState, ...triggers: TransitionTrigger[]): SandboxState {
  return triggers.reduce((from, trigger) => {
    const to = nextState(from, trigger);
    if (to === undefined) throw new Error(`the transition table has no ${trigger} from ${from}`);
    return to;
  }, state);
}

/** What was asked of a sandbox in this state (spec/contract.md, Gateway, "Required source state"). */
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
  const message = `sandbox ${JSON.stringify(sandbox.id)} is in ${sandbox.state}; ${needs}`;
  return { kind: "deny", error: new ClocheError("failed_precondition", message) };
}

export type MachineSight = MachinePhase | "absent";

/** What a record and the machine found for it call for, when no operation is under way. */
export type Remedy =
  | { kind: "none" }
  /** Run again from memory image or disk: through SUSPENDED to RESUMING, with a resume operation. */
  | { kind: "bring_back"; to: SandboxState }
  /** It runs although it was thought suspended: accept what is. */
  | { kind: "adopt"; to: SandboxState }
  | { kind: "fail"; to: SandboxState; reason: string }
  /** A state that only an operation can leave lost its operation: begin it anew. */
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
      // A missing or failed image is told when a resume is asked for: an absence may pass.
      return sight === MachinePhase.RUNNING
        ? { kind: "adopt", to: follow(state, "resume", "resumed") }
        : none;
    case "SANDBOX_STATE_ERROR":
      return none;
  }
}

/** What ran when its host was lost, and was told so in ERROR: now that the host is back. */
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
      return { kind: "fail", to: follow(state, "crashed"), reason: "the machine failed" };
    case MachinePhase.DESTROYED:
    case "absent":
      return { kind: "fail", to: follow(state, "crashed"), reason: "the machine is gone from its host" };
  }
}
