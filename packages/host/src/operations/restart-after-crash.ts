// Restart of a machine that ended by itself (its agent died, memory ran out, the guest halted): it starts cold from its disk with
// the services that ran. A machine that keeps ending is left failed, because the cause would end it for ever.
import { ClocheError } from "@cloche/protocol";
import { stopMachine } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import { startMachine } from "./start-machine.ts";

export const restartsMax = 3;
const windowMs = 10 * 60_000;

/** Counts the restarts of each machine within the last ten minutes. Not kept over a restart of the service: then all may try again. */
export class RestartBudget {
  readonly #nowMs: () => number;
  readonly #spentAtMs = new Map<string, number[]>();

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  /** Takes one restart; false when none is left. */
  take(id: string): boolean {
    const nowMs = this.#nowMs();
    for (const [other, times] of this.#spentAtMs)
      if ((times.at(-1) ?? 0) <= nowMs - windowMs) this.#spentAtMs.delete(other);
    const recent = (this.#spentAtMs.get(id) ?? []).filter((atMs) => atMs > nowMs - windowMs);
    if (recent.length >= restartsMax) return false;
    this.#spentAtMs.set(id, [...recent, nowMs]);
    return true;
  }
}

/** Call in the machine's turn. `reason`: public, says how it ended. */
export async function restartAfterCrash(
  parts: OperationParts,
  budget: RestartBudget,
  id: string,
  reason: string,
): Promise<void> {
  const { machines, log } = parts;
  const record = machines.find(id);
  if (record?.phase !== "running") return;
  log.warn({ sandbox_id: id, reason }, "machine ended by itself");
  await stopMachine(parts, id);
  if (!budget.take(id)) {
    const errorMessage = `${reason}; it had been started again ${restartsMax} times within ten minutes`;
    await machines.move(id, "gave_up", { errorMessage }, { durable: true });
    return;
  }
  const errorMessage = `started again from its disk: ${reason}`;
  await machines.move(id, "ended", { errorMessage }, { durable: true });
  try {
    await startMachine(parts, id);
  } catch (error) {
    log.error({ err: error, sandbox_id: id }, "machine could not be started again");
    const errorMessage = `${reason}; it could not be started again from its disk: ${ClocheError.from(error).message}`;
    await machines.move(id, "gave_up", { errorMessage }, { durable: true });
  }
}
