/**
 * Restart of a machine that ended by itself (its agent died, memory ran out, the guest halted): it starts cold from its disk with
 * the services that ran. A machine that keeps ending is left failed, because the cause would end it for ever.
 */
import { ClocheError } from "@cloche/protocol";
import { stopMachine } from "./machine-steps.ts";
import type { OperationParts } from "./operation-parts.ts";
import type { Parts } from "./parts.ts";
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

/** Call in the machine's turn. Never throws. `reason`: public, says how it ended. */
export async function restartAfterCrash(
  parts: OperationParts,
  budget: RestartBudget,
  id: string,
  reason: string,
): Promise<void> {
  const { machines, log } = parts;
  if (machines.find(id)?.phase !== "running") return;
  log.warn({ sandbox_id: id, reason }, "machine ended by itself");
  try {
    if (budget.take(id)) return await startAgain(parts, budget, id, `started again from its disk: ${reason}`);
    await stopMachine(parts, id);
    await giveUp(parts, id, `${reason}; it had been started again ${restartsMax} times within ten minutes`);
  } catch (error) {
    const why = ClocheError.from(error).message;
    await giveUp(parts, id, `${reason}; it could not be started again from its disk: ${why}`);
  }
}

/**
 * Ends what is left of the machine and starts it cold. A failed start costs the sandbox its end, and on a busy host it passes: the
 * start is repeated while restarts are left. Throws the last failure. `errorMessage`: of the record, until it runs again.
 */
export async function startAgain(
  parts: OperationParts,
  budget: RestartBudget,
  id: string,
  errorMessage: string,
): Promise<void> {
  const { machines, log } = parts;
  for (;;) {
    try {
      await stopMachine(parts, id);
      if (machines.get(id).phase !== "stopped")
        await machines.move(id, "ended", { errorMessage }, { durable: true });
      await startMachine(parts, id);
      return;
    } catch (error) {
      log.error({ err: error, sandbox_id: id }, "machine could not be started again");
      if (machines.cutOf(id).aborted || !budget.take(id)) throw error;
    }
  }
}

/** Never throws. What is left of the machine is ended by the next start of the service. */
export async function giveUp(
  { machines, log }: Parts<"machines" | "log">,
  id: string,
  errorMessage: string,
): Promise<void> {
  await machines
    .move(id, "gave_up", { errorMessage }, { durable: true })
    .catch((err: unknown) => log.error({ err, sandbox_id: id }, "failure not recorded"));
}
