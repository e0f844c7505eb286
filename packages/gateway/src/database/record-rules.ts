/** What follows from a change of a record by itself, whoever makes it. */
import type { SandboxState } from "@cloche/protocol";
import type { SandboxPatch, SandboxRecord } from "./sandbox-record.ts";
import type { SandboxRow } from "./schema.ts";

export const isRunning = ({ state }: SandboxRecord): boolean => state === "SANDBOX_STATE_RUNNING";

/** States in which a sandbox is to go on from its image. */
const keepsImage: ReadonlySet<SandboxState> = new Set(["SANDBOX_STATE_SUSPENDED", "SANDBOX_STATE_RESUMING"]);

/** States on the way to another host. */
const keepsMoving: ReadonlySet<SandboxState> = new Set([...keepsImage, "SANDBOX_STATE_SUSPENDING"]);

/** An image is over once its sandbox ran on, a move once it runs, the loss of a host once its state is another. */
export function withoutPast(read: SandboxRecord, patch: SandboxPatch): SandboxPatch {
  const state = patch.state ?? read.state;
  return {
    ...patch,
    ...(read.image !== "" && !keepsImage.has(state) && { image: "" }),
    ...(read.isMoving && !keepsMoving.has(state) && { isMoving: false }),
    ...(read.isHostLost && state !== read.state && { isHostLost: false }),
  };
}

/** Counted from when it began to run, or from when how often was changed. */
export function checkpointDue(read: SandboxRecord, next: SandboxRecord): Partial<SandboxRow> {
  const everySeconds = (record: SandboxRecord): number =>
    isRunning(record) ? record.checkpointEverySeconds : 0;
  if (everySeconds(next) === everySeconds(read)) return {};
  const dueAtMs = next.updatedAtMs + everySeconds(next) * 1_000;
  return { checkpoint_due_at: everySeconds(next) === 0 ? null : dueAtMs };
}
