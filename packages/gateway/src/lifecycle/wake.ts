/** Runs a sandbox for a data plane request that came while it was suspended (spec/contract.md, The running system). */
import { ClocheError, remedyOf, stateWithReason } from "@cloche/protocol";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { Records } from "./records.ts";

/** Returns the RUNNING record. Throws `unavailable`, naming the state, if it cannot be woken or `signal` aborts. */
export async function wakeSandbox(
  records: Records,
  sandboxId: string,
  signal: AbortSignal,
  resume: (record: SandboxRecord) => Promise<unknown>,
): Promise<SandboxRecord> {
  for (let hasTried = false; ; ) {
    // Begin to wait before the read, so that no change between them is missed.
    const change = records.waitFor(sandboxId, () => true, signal);
    const record = await records.get(sandboxId);
    if (record === undefined) {
      throw new ClocheError("not_found", `there is no sandbox ${JSON.stringify(sandboxId)}`);
    }
    const step = wakeStep(record, hasTried);
    if (step === "runs") return record;
    if (step === "refuse" || signal.aborted) throw cannotWake(record);
    if (step === "resume") {
      hasTried = true;
      await resume(record);
    } else {
      await change;
    }
  }
}

/** What a wake-up does next. It asks for one resume only; a moving sandbox is resumed by the drain. */
function wakeStep(
  { state, autoResume, isMoving }: SandboxRecord,
  hasTried: boolean,
): "runs" | "wait" | "resume" | "refuse" {
  if (state === "SANDBOX_STATE_RUNNING") return "runs";
  if (state === "SANDBOX_STATE_RESUMING" || isMoving) return "wait";
  if (!autoResume || hasTried) return "refuse";
  if (state === "SANDBOX_STATE_SUSPENDING") return "wait";
  return state === "SANDBOX_STATE_SUSPENDED" ? "resume" : "refuse";
}

function cannotWake(record: SandboxRecord): ClocheError {
  const { id, state, errorMessage } = record;
  const remedy = remedyOf(state, id);
  const is = `sandbox ${JSON.stringify(id)} is in ${stateWithReason(state, errorMessage)}`;
  return new ClocheError("unavailable", remedy === "" ? is : `${is}; ${remedy}`);
}
