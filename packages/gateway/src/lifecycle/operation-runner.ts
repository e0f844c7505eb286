/**
 * Runs operations to their end: one at a time per sandbox, all of them again after a restart.
 *
 *   queued ──▶ attempt ──done / undone──▶ ended
 *               ▲   │ outcome unknown (database or host out of reach)
 *               └ wait (doubles) ◀┘
 *   at any point ──replaced by a delete, its lease is over, or the gateway closes──▶ dropped
 *                  (unless it was replaced, the database keeps it)
 *
 * Called by lifecycle.ts, reconciler.ts and lost-hosts.ts for new operations, and by reconciler.ts and
 * operation-leases.ts for operations that another process began. All that must survive a crash is in the database.
 */
import { type Clock, type Log, SerialQueue, step as traceStep } from "@cloche/base";
import type { ClocheError } from "@cloche/protocol";
import type { Database } from "../database/database.ts";
import { isSameTurn, type OperationGroup, type OperationRecord } from "../database/operations.ts";
import type { SandboxRecord } from "../database/sandbox-record.ts";
import type { GatewayMetrics } from "../gateway-metrics.ts";
import { gatewayLimits } from "../limits.ts";
import type { AuditLog } from "./audit-log.ts";
import type { Fleet } from "../hosts/fleet.ts";
import { CreationGroups } from "./creation-groups.ts";
import type { Records } from "./records.ts";
import type { Relocation } from "./relocation.ts";
import { OperationEnds } from "./operation-ends.ts";
import { type SagaWorld, TurnBack } from "./saga-world.ts";
import { sagaOf } from "./sagas.ts";

export interface RunnerDependencies {
  database: Database;
  records: Records;
  fleet: Fleet;
  relocation: Pick<Relocation, "leaveLost">;
  audit: AuditLog;
  metrics: Pick<GatewayMetrics, "operations">;
  clock: Clock;
  log: Log;
}

/** The caller of a create or fork. While it waits, it gets a refusal as its answer instead of a sandbox in ERROR. */
export interface WaitingCaller {
  isWaiting: boolean;
  refusal?: ClocheError;
}

export interface EndedOperation {
  sandboxId: string;
  /** The host that the sandbox left in this operation; a copy may still be there. */
  movedFrom: string | undefined;
  /** As the operation's end wrote it; undefined: not known here, read it. */
  record: SandboxRecord | undefined;
}

interface Launched {
  operationId: string;
  abort: AbortController;
  /** As the operation's end wrote it. */
  record?: SandboxRecord | undefined;
}

export class OperationRunner {
  readonly #needs: RunnerDependencies;
  readonly #queue = new SerialQueue();
  readonly #launched = new Map<string, Launched>();
  readonly #callers = new Map<string, WaitingCaller>();
  readonly #beingWritten = new Set<string>();
  readonly #groups: CreationGroups;
  readonly #ends: OperationEnds;
  /** By host, aborts the calls to it. */
  readonly #calling = new Map<string, AbortController>();
  #hurry = new AbortController();
  #isClosed = false;
  /** Called after each operation that ended or was dropped, unless the gateway is closing. */
  onEnded: (ended: EndedOperation) => void = () => undefined;

  constructor(needs: RunnerDependencies) {
    this.#needs = needs;
    this.#ends = new OperationEnds(needs);
    this.#groups = new CreationGroups(needs.database.operations, needs.log);
    this.#groups.onEnded = (group) => void this.#endForkGroup(group);
  }

  isBusy(sandboxId: string): boolean {
    return this.#launched.has(sandboxId);
  }

  /** Writes a new operation with `write` and starts it; nothing starts if `write` returns false: nothing written. */
  begin(operation: OperationRecord, write: () => Promise<boolean>, caller?: WaitingCaller): Promise<boolean> {
    return this.beginAll([operation], write, caller);
  }

  /** As `begin`, for several operations, each of another sandbox. */
  async beginAll(
    operations: readonly OperationRecord[],
    write: () => Promise<boolean>,
    caller?: WaitingCaller,
  ): Promise<boolean> {
    for (const { id } of operations) this.#beingWritten.add(id);
    try {
      if (!(await write())) return false;
      for (const operation of operations) this.#launch(operation, caller);
      return true;
    } finally {
      for (const { id } of operations) this.#beingWritten.delete(id);
    }
  }

  /** The ids of the operations that run here. */
  running(): string[] {
    return [...this.#launched.values()].map(({ operationId }) => operationId);
  }

  /** Stops operations that this gateway no longer owns; the database keeps them. */
  drop(operationIds: readonly string[]): void {
    for (const { operationId, abort } of this.#launched.values())
      if (operationIds.includes(operationId)) abort.abort(new Error("its lease is over"));
  }

  /** The host is lost: aborts the calls to it, and tries all waiting operations again at once. */
  hostLost(hostId: string): void {
    this.#calling.get(hostId)?.abort(new Error(`host ${hostId} is lost`));
    this.#calling.delete(hostId);
    this.#hurry.abort();
    this.#hurry = new AbortController();
  }

  /** Aborted when the host is lost. */
  #whileThere(hostId: string): AbortSignal {
    const calling = this.#calling.get(hostId) ?? new AbortController();
    this.#calling.set(hostId, calling);
    return calling.signal;
  }

  /** Continues an operation found in the database, unless the call that writes it here is about to start it. */
  goOn(operation: OperationRecord): void {
    if (!this.#beingWritten.has(operation.id)) this.#launch(operation);
  }

  /** Starts the operation; another operation of the same sandbox that still runs here is dropped. */
  #launch(operation: OperationRecord, caller?: WaitingCaller): void {
    if (this.#isClosed) return;
    const running = this.#launched.get(operation.sandboxId);
    if (running?.operationId === operation.id) return;
    running?.abort.abort(new Error(`replaced by ${operation.kind}`));
    const launched: Launched = { operationId: operation.id, abort: new AbortController() };
    this.#launched.set(operation.sandboxId, launched);
    if (caller !== undefined) this.#callers.set(operation.id, caller);
    const { group } = operation.input;
    if (group !== undefined) this.#groups.join(group, operation.sandboxId);
    void this.#queue.run(operation.sandboxId, () => this.#run(operation, launched));
  }

  /** Drops running operations; the next start continues them. */
  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { abort } of this.#launched.values()) abort.abort(new Error("the gateway is closing"));
    await this.#queue.drain();
  }

  async #run(operation: OperationRecord, launched: Launched): Promise<void> {
    const { signal } = launched.abort;
    let current: OperationRecord | undefined = operation;
    let waitMs: number = gatewayLimits.operationRetryMs;
    while (current !== undefined && !signal.aborted) {
      const hasEnded = await this.#attempt(current, launched);
      if (hasEnded) break;
      await this.#needs.clock
        .sleep(waitMs, AbortSignal.any([signal, this.#hurry.signal]))
        .catch(() => undefined);
      waitMs = Math.min(waitMs * 2, gatewayLimits.operationRetryMaxMs);
      current = await this.#readAgain(current, signal);
    }
    this.#callers.delete(operation.id);
    const { group } = operation.input;
    if (group !== undefined) this.#groups.leave(group, operation.sandboxId);
    if (this.#launched.get(operation.sandboxId) === launched) this.#launched.delete(operation.sandboxId);
    const { movedFrom } = operation.input;
    const ended = { sandboxId: operation.sandboxId, movedFrom, record: launched.record };
    if (!this.#isClosed) this.onEnded(ended);
  }

  /** The operation as the database has it; undefined when it ended, was replaced or was taken over. */
  async #readAgain(operation: OperationRecord, signal: AbortSignal): Promise<OperationRecord | undefined> {
    if (signal.aborted) return undefined;
    try {
      const found = await this.#needs.database.operations.ofSandbox(operation.sandboxId);
      return isSameTurn(found, operation) ? found : undefined;
    } catch {
      return operation;
    }
  }

  /** True when nothing is left to do here: the operation is done, undone, replaced or dropped. */
  async #attempt(operation: OperationRecord, launched: Launched): Promise<boolean> {
    const { log, records } = this.#needs;
    const { signal } = launched.abort;
    const state: Attempt = { launched, failure: undefined };
    try {
      state.unread = state.known = await records.get(operation.sandboxId);
    } catch (error) {
      const fields = { err: error, sandbox_id: operation.sandboxId };
      log.warn(fields, `${operation.kind} could not begin; it is tried again`);
      return false;
    }
    const saga = sagaOf(operation.kind, this.#world(operation, state));
    const fields = { sandbox_id: operation.sandboxId, request_id: operation.requestId };
    try {
      if (operation.direction === "forward") {
        try {
          await saga.run();
          return true;
        } catch (error) {
          if (!(error instanceof TurnBack) || operation.kind === "delete") throw error;
          await this.#turnBack(operation, error, state);
          log.warn({ err: error, ...fields }, `${operation.kind} failed and is undone`);
        }
      }
      await saga.undo();
      return true;
    } catch (error) {
      if (signal.aborted || error instanceof NotOurs) return true;
      log.warn({ err: error, ...fields }, `${operation.kind} could not go on; it is tried again`);
      return false;
    }
  }

  /** Writes the failure before anything is undone, so that the operation never goes forward again. */
  async #turnBack(operation: OperationRecord, failure: TurnBack, attempt: Attempt): Promise<void> {
    const { clock, database } = this.#needs;
    const { signal } = attempt.launched.abort;
    signal.throwIfAborted();
    attempt.failure = failure;
    const { group } = operation.input;
    if (group !== undefined) await this.#turnGroupBack(operation, group, failure);
    const back = { ...operation, direction: "back" as const, failure: failure.message };
    if (!(await database.operations.save(back, clock.nowMs()))) throw new NotOurs();
    Object.assign(operation, back);
  }

  #world(operation: OperationRecord, attempt: Attempt): SagaWorld {
    const { clock, fleet, records, relocation } = this.#needs;
    const { sandboxId, requestId } = operation;
    const { signal } = attempt.launched.abort;
    const whileThere = (id: string): AbortSignal => this.#whileThere(id);
    // Empty when the record is gone. In one process the fleet has one host, whatever the id.
    let hostId = attempt.known?.hostId ?? "";
    return {
      operation,
      get host() {
        return fleet.calls(hostId);
      },
      get isHostLost() {
        return fleet.isLost(hostId);
      },
      async leaveLostHost(record) {
        const moved = await relocation.leaveLost(record, operation);
        if (moved === undefined) throw new Error(`sandbox ${sandboxId} has moved on, or its host is back`);
        operation.input.movedFrom = hostId;
        hostId = moved.hostId;
        attempt.known = moved;
        return moved;
      },
      get machines() {
        return fleet.machinesOf(hostId);
      },
      get call() {
        return { signal: AbortSignal.any([signal, whileThere(hostId)]), requestId, fence: operation };
      },
      nowMs: () => clock.nowMs(),
      step: (name, body) => {
        signal.throwIfAborted();
        return traceStep(name, body);
      },
      pause: (ms) => clock.sleep(ms, signal),
      async read() {
        // The first read of a step takes the record that the attempt began with.
        attempt.known = attempt.unread ?? (await records.get(sandboxId));
        attempt.unread = undefined;
        return attempt.known;
      },
      recordOf: (id) => records.get(id),
      inTurn: (body) =>
        operation.input.group === undefined ? body() : this.#groups.inTurn(operation.input.group, body),
      end: async (from, result, patch) => {
        const { known } = attempt;
        attempt.launched.record = await this.#ends.end(operation, { from, result, patch, known });
      },
      endTogether: (group, from, patch) =>
        this.#groups.arrive(group, sandboxId, signal, (all) => this.#ends.publish(all, group, from, patch)),
      endGone: (from) => this.#ends.gone(operation, from, attempt.known),
      refusedCaller: () => {
        const caller = this.#callers.get(operation.id);
        if (!caller?.isWaiting || attempt.failure === undefined || !refusalCodes.has(attempt.failure.code))
          return false;
        caller.refusal = attempt.failure;
        return true;
      },
    };
  }

  /** Turns the whole group back with its first failure; decides once whether the caller gets it as its answer. */
  async #turnGroupBack(
    operation: OperationRecord,
    group: OperationGroup,
    failure: ClocheError,
  ): Promise<void> {
    const { clock, database } = this.#needs;
    const caller = this.#callers.get(operation.id);
    const isRefused = caller?.isWaiting === true;
    const decided = await this.#groups.turnBack(group, { error: failure, isRefused }, async () => {
      const all = {
        owner: operation.owner,
        input: { group, isRefused },
        failure: failure.message,
      };
      await database.operations.turnBack(group, all, clock.nowMs());
      if (isRefused) caller.refusal = failure;
    });
    operation.input.isRefused = decided.isRefused;
  }

  async #endForkGroup(group: OperationGroup): Promise<void> {
    if (this.#isClosed) return;
    const call = { signal: AbortSignal.timeout(gatewayLimits.hostQueryMs), requestId: "" };
    const end = async () => await this.#needs.fleet.calls(group.hostId ?? "").endForkGroup(group.id, call);
    await end().catch((err: unknown) =>
      this.#needs.log.warn({ err }, "snapshot of a fork group not removed; the sweep removes it"),
    );
  }
}

/** Another gateway took the operation over, or another operation replaced it: this attempt ends without writing. */
class NotOurs extends Error {}

interface Attempt {
  readonly launched: Launched;
  /** The record as last read; undefined: it is gone, or was not read. */
  known?: SandboxRecord | undefined;
  /** The record that the attempt began with, until a step has read it. */
  unread?: SandboxRecord | undefined;
  failure: ClocheError | undefined;
}

/** Failures of the request rather than of the machine: a waiting caller gets them as its answer. */
const refusalCodes: ReadonlySet<string> = new Set([
  "invalid_argument",
  "not_found",
  "already_exists",
  "failed_precondition",
  "resource_exhausted",
  "unimplemented",
]);
