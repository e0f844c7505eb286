/**
 * Requests to sandboxes: create, fork, suspend, resume, delete, update and wake. A request that changes the state reads
 * the record, decides without side effects (decide.ts), and writes the decision with the operation that carries it out
 * in one compare-and-set; operation-runner.ts then runs the operation. States and transitions: @cloche/protocol/states.
 * Called by the public service, by wake-ups of the edge and by timers. After a crash, the next start goes on with the
 * operations in the database.
 */
import type { Clock, Log } from "@cloche/base";
import { ClocheError, isSandboxId, limits, type RandomBytes, type SandboxState } from "@cloche/protocol";
import type { Database } from "../database/database.ts";
import type { KeyedCall } from "../database/idempotency-keys.ts";
import type { OperationInput, OperationKind, OperationRecord } from "../database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../database/sandbox-record.ts";
import type { NewRow } from "../database/sandboxes.ts";
import { gatewayLimits } from "../limits.ts";
import type { AuditLog, Caller } from "./audit-log.ts";
import { decideRequest, type LifecycleRequest } from "./decide.ts";
import type { OperationRunner, WaitingCaller } from "./operation-runner.ts";
import type { Records } from "./records.ts";
import type { Place, Relocation } from "./relocation.ts";
import { wakeSandbox } from "./wake.ts";

export interface LifecycleDependencies {
  database: Database;
  records: Records;
  runner: OperationRunner;
  audit: AuditLog;
  clock: Clock;
  log: Log;
  randomBytes: RandomBytes;
  /** True: a sandbox is written only if its host has room for it. */
  isCluster: boolean;
  relocation: Relocation;
  /** Most sandboxes of one team; 0: no limit. */
  sandboxesMax: number;
  /** The owner of operations begun here (operation-leases.ts); empty where the gateway is the only one. */
  owner: string;
}

/** What create and fork settle before anything is written. */
export type NewSandbox = Pick<
  SandboxRecord,
  | "id"
  | "hostId"
  | "name"
  | "runtime"
  | "template"
  | "cpus"
  | "memoryMb"
  | "diskMb"
  | "env"
  | "metadata"
  | "publicPorts"
  | "egress"
  | "sourceSandboxId"
  | "sourceCheckpointId"
  | "timeoutSeconds"
  | "onTimeout"
  | "idleSuspendSeconds"
  | "autoResume"
  | "onHostLoss"
  | "checkpointEverySeconds"
>;

/** An idempotency key, with the hash of the request that it stands for. */
export type CallKey = Pick<KeyedCall, "key" | "requestHash">;

export type SandboxSettings = Partial<
  Pick<
    SandboxRecord,
    | "name"
    | "metadata"
    | "timeoutSeconds"
    | "onTimeout"
    | "idleSuspendSeconds"
    | "autoResume"
    | "onHostLoss"
    | "checkpointEverySeconds"
    | "publicPorts"
    | "egress"
  >
>;

interface SuspendOptions {
  diskOnly?: boolean;
  isDone?: ((record: SandboxRecord) => boolean) | undefined;
}

interface RequestOptions {
  /** Checked each time the record is read; false ends the request without a change. */
  stillWanted?: (record: SandboxRecord) => boolean;
  alsoSet?: SandboxPatch;
  input?: OperationInput;
}

export class Lifecycle {
  readonly #needs: LifecycleDependencies;
  readonly #closed = new AbortController();
  #lastOrdinal = 0;
  /** Makes it rare that two gateways choose the same ordinal; where they do, the insert throws IdTaken. */
  #ordinalOffset = 0;

  constructor(needs: LifecycleDependencies) {
    this.#needs = needs;
    if (needs.owner !== "") this.#ordinalOffset = Buffer.from(needs.randomBytes(2)).readUInt16BE() % 1_000;
  }

  /** Must be awaited before the first create. */
  async start(): Promise<void> {
    this.#lastOrdinal = await this.#needs.database.sandboxes.lastOrdinal();
  }

  /** Ends all waits: their callers get the sandbox in its current state. */
  close(): void {
    this.#closed.abort();
  }

  /** Returns the team's sandbox. Throws `not_found` when the team has none with this id, even if another team has. */
  async find(caller: Caller, id: string, field: string): Promise<SandboxRecord> {
    if (id === "") {
      throw new ClocheError("invalid_argument", `${field} is missing; it must be the id of a sandbox`);
    }
    const record = isSandboxId(id) ? await this.#needs.records.get(id) : undefined;
    if (record === undefined || record.teamId !== caller.teamId) {
      throw new ClocheError("not_found", `${field}: there is no sandbox ${JSON.stringify(id)}`);
    }
    return record;
  }

  /**
   * Creates sandboxes. Returns them when all are RUNNING or have failed, or after 10 s (limits.createAnswerMs) in the
   * states that they have then. Several sandboxes become RUNNING together, or none is kept. Throws the host's refusal
   * when nothing was created, KeyTaken and IdTaken. `fork`: the sandboxes are live clones of `sourceSandboxId`.
   */
  async create(
    caller: Caller,
    wanted: readonly NewSandbox[],
    kind: "create" | "fork",
    key?: CallKey,
  ): Promise<SandboxRecord[]> {
    const { isCluster, records, runner, sandboxesMax } = this.#needs;
    const ids = wanted.map(({ id }) => id);
    const rows = this.#newRows(caller, wanted, kind);
    const keyed = key && this.#keyed(caller, key, ids);
    const insert = () =>
      records
        .insert(rows, { ofTeamMax: sandboxesMax, key: keyed, room: isCluster ? "new" : undefined })
        .then(() => true);
    const waiting: WaitingCaller = { isWaiting: true };
    const deadline = this.#deadline(limits.createAnswerMs);
    let made: readonly (SandboxRecord | undefined)[];
    const settled = Promise.all(ids.map((id) => records.waitFor(id, isMade, deadline.signal)));
    try {
      await runner.beginAll(
        rows.map(({ begin }) => begin),
        insert,
        waiting,
      );
      made = await settled;
    } finally {
      waiting.isWaiting = false;
      deadline.end();
    }
    if (waiting.refusal !== undefined) throw waiting.refusal;
    // One of several sandboxes may have changed while the others were still being made.
    const [only] = made;
    if (only !== undefined && made.length === 1) return [only];
    return await Promise.all(ids.map(async (id) => present(id, await records.get(id))));
  }

  #newRows(caller: Caller, wanted: readonly NewSandbox[], kind: "create" | "fork"): Required<NewRow>[] {
    const { audit, randomBytes } = this.#needs;
    const id = Buffer.from(randomBytes(10)).toString("hex");
    const group = { id, sandboxIds: wanted.map((one) => one.id), hostId: wanted[0]?.hostId ?? "" };
    const input = wanted.length > 1 ? { group } : {};
    return wanted.map((one) => ({
      record: this.#newRecord(caller, one),
      // From generation 0 the operation gets number 1, the generation of the new record.
      begin: { ...newOperation(this.#needs, caller, { id: one.id, generation: 0 }, kind), input },
      audit: audit.entry(caller, `sandbox.${kind}`, one.id),
    }));
  }

  /** Returns the sandbox when it is no longer CREATING, or after 10 s in its state then; undefined: it is gone. */
  async made(id: string): Promise<SandboxRecord | undefined> {
    return await this.#until(id, isMade, limits.createAnswerMs);
  }

  /** Returns the record when `isOver` is true of it, or after `ms` as it then is; undefined: it is gone. */
  async #until(
    id: string,
    isOver: (record: SandboxRecord) => boolean,
    ms: number,
  ): Promise<SandboxRecord | undefined> {
    const { records } = this.#needs;
    const deadline = this.#deadline(ms);
    try {
      const settled = records.waitFor(id, isOver, deadline.signal);
      const record = await records.get(id);
      if (record === undefined || isOver(record)) return record;
      await settled;
    } finally {
      deadline.end();
    }
    return await records.get(id);
  }

  #keyed({ teamId }: Caller, key: CallKey, sandboxIds: readonly string[]): KeyedCall {
    const expiresAtMs = this.#needs.clock.nowMs() + limits.idempotencyKeepSeconds * 1_000;
    return { ...key, teamId, sandboxIds, expiresAtMs };
  }

  /**
   * Begins to suspend the sandbox and returns it in SUSPENDING at once; unchanged when it is SUSPENDED or SUSPENDING
   * already. With `isDone`, returns when `isDone` is true of the record, when the suspend failed, or after 60 s
   * (limits.durableAnswerMs).
   */
  async suspend(
    caller: Caller,
    record: SandboxRecord,
    { diskOnly = false, isDone }: SuspendOptions = {},
  ): Promise<SandboxRecord> {
    const suspending = await this.#request(caller, record, "suspend", {
      input: diskOnly ? { diskOnly } : {},
    });
    if (isDone === undefined) return suspending;
    const isOver = (r: SandboxRecord): boolean => isDone(r) || !suspendingStates.has(r.state);
    return present(record.id, await this.#until(record.id, isOver, limits.durableAnswerMs));
  }

  /**
   * For a sandbox whose time is up and whose on_timeout is suspend. A RUNNING sandbox is suspended; in other states
   * there is nothing to end. In both cases the expiry is cleared, and the next resume starts the time again.
   */
  async suspendExpired(
    caller: Caller,
    record: SandboxRecord,
    isDue: (record: SandboxRecord) => boolean,
  ): Promise<void> {
    const stillWanted = (r: SandboxRecord): boolean => isDue(r) && r.onTimeout === "suspend";
    const runs = (r: SandboxRecord): boolean => r.state === "SANDBOX_STATE_RUNNING";
    if (runs(record)) {
      const stillRuns = (r: SandboxRecord): boolean => runs(r) && stillWanted(r);
      await this.#request(caller, record, "suspend", {
        stillWanted: stillRuns,
        alsoSet: { expiresAtMs: null },
      });
    } else if (stillWanted(record)) {
      // If the record changed meanwhile, nothing is written, and expiry.ts finds the sandbox again.
      await this.#needs.records.change(record, { expiresAtMs: null, isMoving: false });
    }
  }

  /** Suspends the sandbox to resume it on another host. False: not RUNNING, or no longer on the host of `record`. */
  async suspendToMove(caller: Caller, record: SandboxRecord): Promise<boolean> {
    const runsThere = ({ state, hostId }: SandboxRecord): boolean =>
      state === "SANDBOX_STATE_RUNNING" && hostId === record.hostId;
    const stillWanted = runsThere;
    const moving = await this.#request(caller, record, "suspend", {
      stillWanted,
      alsoSet: { isMoving: true },
      input: { isForMove: true },
    });
    return moving.isMoving;
  }

  /**
   * Begins to resume the sandbox and returns it in RESUMING at once; unchanged when it is RUNNING or RESUMING already.
   */
  resume(caller: Caller, record: SandboxRecord): Promise<SandboxRecord> {
    return this.#request(caller, record, "resume");
  }

  /** Returns when DELETING is durable; the machine is destroyed after that. `stillWanted`: as in RequestOptions. */
  async delete(
    caller: Caller,
    record: SandboxRecord,
    stillWanted: (record: SandboxRecord) => boolean = () => true,
  ): Promise<void> {
    await this.#request(caller, record, "delete", { stillWanted });
  }

  /** Throws `failed_precondition`, naming the state, when the state forbids the request. */
  check(record: SandboxRecord, request: LifecycleRequest): void {
    const verdict = decideRequest(record, request);
    if (verdict.kind === "deny") throw verdict.error;
  }

  /** Changes settings in any state but DELETING; `timeoutSeconds` counts from now. */
  async update(caller: Caller, record: SandboxRecord, settings: SandboxSettings): Promise<SandboxRecord> {
    const { audit, clock, records } = this.#needs;
    const patch: SandboxPatch = { ...settings };
    if (settings.timeoutSeconds !== undefined) {
      patch.expiresAtMs = expiryOf(settings.timeoutSeconds, clock.nowMs());
    }
    for (let read = record, attempt = 0; attempt < gatewayLimits.changeAttempts; attempt += 1) {
      this.check(read, "update");
      const entry = audit.entry(caller, "sandbox.update", read.id, "ok", Object.keys(settings).join(" "));
      const changed = await records.change(read, patch, { audit: entry });
      if (changed !== undefined) return changed;
      read = await this.find(caller, read.id, "id");
    }
    throw tooBusy(record.id);
  }

  /** Runs a sandbox for a data plane request that came while it was suspended (wake.ts). */
  async wake(sandboxId: string, requestId: string): Promise<SandboxRecord> {
    const deadline = this.#deadline(gatewayLimits.wakeMs);
    try {
      return await wakeSandbox(this.#needs.records, sandboxId, deadline.signal, (record) =>
        this.resume({ teamId: record.teamId, actor: "system:wake", requestId }, record),
      );
    } finally {
      deadline.end();
    }
  }

  async #request(
    caller: Caller,
    record: SandboxRecord,
    request: "suspend" | "resume" | "delete",
    { stillWanted = () => true, alsoSet = {}, input = {} }: RequestOptions = {},
  ): Promise<SandboxRecord> {
    const { audit, records } = this.#needs;
    let read = record;
    for (let attempt = 0; attempt < gatewayLimits.changeAttempts; attempt += 1) {
      const verdict = decideRequest(read, request);
      if (!stillWanted(read)) return read;
      if (verdict.kind === "unchanged") {
        // The owner wants the sandbox suspended: its move to another host ends here.
        if (request !== "suspend" || !read.isMoving) return read;
        const stays = await records.change(read, { isMoving: false });
        if (stays !== undefined) return stays;
        read = await this.find(caller, read.id, "id");
        continue;
      }
      if (verdict.kind === "deny") {
        await audit.denied(caller, `sandbox.${request}`, read.id, verdict.error);
        throw verdict.error;
      }
      const patch: SandboxPatch = { ...alsoSet, state: verdict.to };
      if (request !== "delete") patch.errorMessage = "";
      const operation = { ...newOperation(this.#needs, caller, read, verdict.operation), input };
      const changed = await this.#begin(caller, request, { read, patch, operation });
      if (changed !== undefined) return changed;
      read = await this.find(caller, read.id, "id");
    }
    throw tooBusy(record.id);
  }

  /** Undefined: the record has changed since it was read. */
  async #begin(
    caller: Caller,
    request: "suspend" | "resume" | "delete",
    { read, patch, operation }: { read: SandboxRecord; patch: SandboxPatch; operation: OperationRecord },
  ): Promise<SandboxRecord | undefined> {
    const { audit, records, relocation, runner } = this.#needs;
    const entry = audit.entry(caller, `sandbox.${request}`, read.id);
    const write = async ({ hostId, room }: Place): Promise<SandboxRecord | undefined> => {
      const isMoved = hostId !== read.hostId;
      const input = { ...operation.input, ...(isMoved && { movedFrom: read.hostId }) };
      const begin = { ...operation, input };
      let changed: SandboxRecord | undefined;
      await runner.begin(begin, async () => {
        const fields = isMoved ? { ...patch, hostId } : patch;
        changed = await records.change(read, fields, { begin, audit: entry, ...(room && { room }) });
        return changed !== undefined;
      });
      return changed;
    };
    return request === "resume" ? await relocation.resume(read, write) : await write({ hostId: read.hostId });
  }

  #newRecord(caller: Caller, wanted: NewSandbox): SandboxRecord {
    const nowMs = this.#needs.clock.nowMs();
    this.#lastOrdinal = Math.max(this.#lastOrdinal + 1, nowMs * 1_000 + this.#ordinalOffset);
    return {
      ...wanted,
      teamId: caller.teamId,
      ordinal: this.#lastOrdinal,
      state: "SANDBOX_STATE_CREATING",
      generation: 1,
      errorMessage: "",
      image: "",
      isMoving: false,
      isHostLost: false,
      createdBy: caller.actor,
      firstRanAtMs: null,
      expiresAtMs: expiryOf(wanted.timeoutSeconds, nowMs),
      createdAtMs: nowMs,
      updatedAtMs: nowMs,
    };
  }

  /** A signal that aborts after `ms`, when the gateway closes, or at `end`. */
  #deadline(ms: number): { signal: AbortSignal; end(): void } {
    const over = new AbortController();
    const signal = AbortSignal.any([over.signal, this.#closed.signal]);
    const end = (): void => over.abort(deadlineOver);
    void this.#needs.clock.sleep(ms, signal).then(end, () => undefined);
    return { signal, end };
  }
}

/** `read`: the record as read before the write that begins the operation. */
export function newOperation(
  { clock, owner, randomBytes }: Pick<LifecycleDependencies, "clock" | "owner" | "randomBytes">,
  caller: Caller,
  read: Pick<SandboxRecord, "id" | "generation">,
  kind: OperationKind,
): OperationRecord {
  const nowMs = clock.nowMs();
  return {
    id: `op-${Buffer.from(randomBytes(12)).toString("hex")}`,
    sandboxId: read.id,
    kind,
    direction: "forward",
    input: {},
    failure: "",
    actor: caller.actor,
    requestId: caller.requestId,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
    owner,
    attempt: 1,
    number: read.generation + 1,
  };
}

/** Nothing reads this error. Created once, because an abort without a reason creates a new error each time. */
const deadlineOver = new Error("the wait is over");

const suspendingStates: ReadonlySet<SandboxState> = new Set([
  "SANDBOX_STATE_SUSPENDING",
  "SANDBOX_STATE_SUSPENDED",
]);

function present(id: string, found: SandboxRecord | undefined): SandboxRecord {
  if (found !== undefined) return found;
  throw new ClocheError("aborted", `sandbox ${JSON.stringify(id)} was deleted meanwhile`);
}

const isMade = ({ state }: SandboxRecord): boolean => state !== "SANDBOX_STATE_CREATING";

const expiryOf = (timeoutSeconds: number, nowMs: number): number | null =>
  timeoutSeconds === 0 ? null : nowMs + timeoutSeconds * 1_000;

export const tooBusy = (id: string): ClocheError =>
  new ClocheError("aborted", `sandbox ${JSON.stringify(id)} changes too fast; try again`);
