/**
 * Groups of sandboxes that are made together: none is RUNNING before all machines run, and if one fails, none is kept.
 *
 *   working ──the machines of all run──▶ published, in one transaction
 *      └────── one of them fails ──────▶ turned back: written on every operation in one transaction, each then undoes its own
 *
 * A sandbox that its owner deletes meanwhile leaves the group. This class keeps, in memory, which operations of a group
 * run here and which of them wait for the others. The decision is in the database, so a crash loses nothing.
 */
import { type Log, SerialQueue, Turns } from "@cloche/base";
import type { Database } from "../database/database.ts";
import type { OperationGroup, OperationRecord } from "../database/operations.ts";
import { gatewayLimits } from "../limits.ts";

/** Makes the sandboxes of these operations RUNNING in one transaction that ends the operations. */
export type Publish = (operations: readonly OperationRecord[]) => Promise<void>;

export interface GroupFailure {
  error: Error;
  isRefused: boolean;
}

interface Group {
  /** Bounds how many machines of the group are made at once. */
  readonly turns: Turns;
  readonly members: Set<string>;
  readonly waiting: Map<string, PromiseWithResolvers<void>>;
  publish?: Publish;
  failure?: GroupFailure;
}

export class CreationGroups {
  readonly #operations: Database["operations"];
  readonly #log: Log;
  readonly #groups = new Map<string, Group>();
  /** Serializes the decisions of each group. */
  readonly #queue = new SerialQueue();
  /** Called when no operation of the group is left. */
  onEnded: (group: OperationGroup) => void = () => undefined;

  constructor(operations: Database["operations"], log: Log) {
    this.#operations = operations;
    this.#log = log;
  }

  /** The operation begins to run here. */
  join(group: OperationGroup, sandboxId: string): void {
    this.#of(group).members.add(sandboxId);
  }

  /** The operation no longer runs here. If it also ended or was replaced, the others stop waiting for it. */
  leave(group: OperationGroup, sandboxId: string): void {
    const own = this.#of(group);
    own.members.delete(sandboxId);
    const isLast = own.members.size === 0;
    if (isLast) this.#groups.delete(group.id);
    void this.#queue
      .run(group.id, async () => {
        if (!isLast) return await this.#publishWhole(group, own);
        if ((await this.#operations.ofGroup(group)).length === 0) this.onEnded(group);
      })
      .catch((err: unknown) =>
        this.#log.debug({ err, sandbox_id: sandboxId }, "check of its group postponed"),
      );
  }

  /** Runs `body`, which makes one machine, in turn. If the group has turned back, throws its failure instead. */
  async inTurn(group: OperationGroup, body: () => Promise<void>): Promise<void> {
    const own = this.#of(group);
    const end = await own.turns.enter();
    try {
      const { failure } = own;
      if (failure !== undefined) throw failure.error;
      await body();
    } finally {
      end();
    }
  }

  /** Call it when this sandbox's machine runs. Resolves when the group is published; throws when it turned back. */
  async arrive(
    group: OperationGroup,
    sandboxId: string,
    signal: AbortSignal,
    publish: Publish,
  ): Promise<void> {
    const own = this.#of(group);
    if (own.failure !== undefined) throw own.failure.error;
    const waiter = Promise.withResolvers<void>();
    const drop = (): void => waiter.reject(signal.reason);
    signal.addEventListener("abort", drop, { once: true });
    own.waiting.set(sandboxId, waiter);
    own.publish = publish;
    try {
      signal.throwIfAborted();
      void this.#queue.run(group.id, () => this.#publishWhole(group, own)).catch(() => undefined);
      await waiter.promise;
    } finally {
      signal.removeEventListener("abort", drop);
      own.waiting.delete(sandboxId);
    }
  }

  /** Turns the group back: `write` writes the first failure on every operation. Returns that first failure. */
  async turnBack(
    group: OperationGroup,
    failure: GroupFailure,
    write: () => Promise<void>,
  ): Promise<GroupFailure> {
    const own = this.#of(group);
    return await this.#queue.run(group.id, async () => {
      if (own.failure === undefined) {
        await write();
        own.failure = failure;
        for (const waiter of own.waiting.values()) waiter.reject(failure.error);
      }
      return own.failure;
    });
  }

  #of({ id }: OperationGroup): Group {
    const known = this.#groups.get(id);
    if (known !== undefined) return known;
    const made: Group = {
      turns: new Turns(gatewayLimits.groupForksAtOnce),
      members: new Set(),
      waiting: new Map(),
    };
    this.#groups.set(id, made);
    return made;
  }

  /** Publishes the group if every sandbox of it that is still being made waits here. */
  async #publishWhole(group: OperationGroup, { waiting, publish, failure }: Group): Promise<void> {
    if (publish === undefined || failure !== undefined || waiting.size === 0) return;
    try {
      const pending = await this.#operations.ofGroup(group);
      // Written although the answer to the write was lost: each reads its operation again, and undoes its own.
      if (pending.some(({ direction }) => direction === "back")) throw new Error("the group has turned back");
      if (pending.some(({ sandboxId }) => !waiting.has(sandboxId))) return;
      await publish(pending);
      for (const waiter of waiting.values()) waiter.resolve();
    } catch (error) {
      for (const waiter of waiting.values()) waiter.reject(error);
      throw error;
    }
  }
}
