/** What messages about a sandbox's state say: why it is so, and what the caller can do, with the command of the CLI. */
import type { SandboxState } from "./states.ts";

const longestReason = 300;

/** The next step of a caller who needs the sandbox to run. `id`: its id, or a name that the command takes. */
export function remedyOf(state: SandboxState, id: string): string {
  switch (state) {
    case "SANDBOX_STATE_CREATING":
    case "SANDBOX_STATE_RESUMING":
      return "it runs soon: try again";
    case "SANDBOX_STATE_SUSPENDING":
      return `once it is suspended, resume it: ResumeSandbox, or cloche resume ${id}`;
    case "SANDBOX_STATE_SUSPENDED":
      return `resume it: ResumeSandbox, or cloche resume ${id}`;
    case "SANDBOX_STATE_DELETING":
      return "it is gone soon: create another one";
    case "SANDBOX_STATE_ERROR":
      return `start another one from a checkpoint of it (cloche checkpoint ls ${id}, then cloche create --checkpoint CHECKPOINT) and delete it (DeleteSandbox, or cloche rm ${id})`;
    case "SANDBOX_STATE_RUNNING":
      return "";
  }
}

/** `SANDBOX_STATE_ERROR: why`. */
export const stateWithReason = (state: string, reason = ""): string =>
  reason === "" ? state : `${state}: ${reason.slice(0, longestReason)}`;
