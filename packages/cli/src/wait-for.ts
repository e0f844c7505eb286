import { remedyOf } from "@cloche/protocol";
import { ClocheWaitError, type Sandbox, type SandboxState } from "@cloche/sdk";
import { ConflictError } from "./exit-codes.ts";
import type { Run } from "./register.ts";

/** Waits until the sandbox is in the state. The error of one that cannot get there says what helps. */
export async function waitFor(
  { signal }: Pick<Run, "signal">,
  sandbox: Sandbox,
  state: SandboxState,
): Promise<void> {
  try {
    await sandbox.waitFor(state, { signal });
  } catch (error) {
    if (!(error instanceof ClocheWaitError) || error.code !== "wait_failed") throw error;
    const remedy = remedyOf(sandbox.info.state, sandbox.id);
    throw new ConflictError(remedy === "" ? error.message : `${error.message}; ${remedy}`, { cause: error });
  }
}
