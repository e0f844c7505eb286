/** Fields that change by themselves with every change of a record. */
import type { SandboxState } from "@cloche/protocol";
import type { SandboxPatch, SandboxRecord } from "./sandbox-record.ts";
import type { SandboxRow } from "./schema.ts";

export const isRunning = ({ state }: SandboxRecord): boolean => state === "SANDBOX_STATE_RUNNING";

/** States in which the record keeps the image of the suspension. */
const keepsImage: ReadonlySet<SandboxState> = new Set(["SANDBOX_STATE_SUSPENDED", "SANDBOX_STATE_RESUMING"]);

/** States of a move to another host. */
const keepsMoving: ReadonlySet<SandboxState> = new Set([...keepsImage, "SANDBOX_STATE_SUSPENDING"]);

/** Clears image and move when the state no longer keeps them, and the mark of a lost host with any new state. */
export function withoutPast(read: SandboxRecord, patch: SandboxPatch): SandboxPatch {
  const state = patch.state ?? read.state;
  return {
    ...patch,
    ...(read.image !== "" && !keepsImage.has(state) && { image: "" }),
    ...(read.isMoving && !keepsMoving.has(state) && { isMoving: false }),
    ...(read.isHostLost && state !== read.state && { isHostLost: false }),
  };
}

/**
 * Sets the next automatic checkpoint when the sandbox begins to run or its interval changes; none when it does not run.
 */
export function checkpointDue(read: SandboxRecord, next: SandboxRecord): Partial<SandboxRow> {
  const everySeconds = (record: SandboxRecord): number =>
    isRunning(record) ? record.checkpointEverySeconds : 0;
  if (everySeconds(next) === everySeconds(read)) return {};
  const dueAtMs = next.updatedAtMs + everySeconds(next) * 1_000;
  return { checkpoint_due_at: everySeconds(next) === 0 ? null : dueAtMs };
}
