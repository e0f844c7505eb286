/**
 * Sandbox records. Every write compares the generation that was read and sets the next one, in one transaction with the
 * operation that it begins or ends and with its audit entry.
 */
import { ClocheError, type SandboxState } from "@cloche/protocol";
import { type ExpressionBuilder, type Kysely, type Transaction } from "kysely";
import { type AuditEntry, insertAudit } from "./audit.ts";
import type { ChangeLog } from "./change-log.ts";
import { holdLost, reserve, type Room } from "./host-reservations.ts";
import { freeKeyOf, insertKey, type KeyedCall } from "./idempotency-keys.ts";
import { insertOperation, type OperationRecord, type OperationTurn } from "./operations.ts";
import { type SandboxPatch, type SandboxRecord, sandboxFromRow, sandboxToRow } from "./sandbox-record.ts";
import type { SandboxRow, Schema } from "./schema.ts";
import { checkpointDue, isRunning, withoutPast } from "./record-rules.ts";
import { listSandboxes, type SandboxQuery } from "./sandbox-list.ts";
import { countSandboxes } from "./team-count.ts";
import { imagePacks, nameImage } from "./stored-images.ts";
import { closeInterval, openInterval, renameIntervals } from "./usage.ts";

export interface SandboxWrite {
  /** Begins this operation, which replaces any other of the sandbox. */
  begin?: OperationRecord;
  /** Ends this operation. Nothing is written if the operation was replaced or taken over. */
  end?: OperationTurn;
  audit?: AuditEntry;
  /** The machine is gone: compute time counts until it was last seen to run. */
  ranUntilSeen?: true;
  /** In a cluster: what the change demands of the sandbox's host. */
  room?: Room;
  /** Nothing is written unless the host of the record as read is lost, until the transaction ends. */
  leavesLostHost?: true;
  /** The generation becomes at least this: the host knows a newer one than the record, because the database is older. */
  generationMin?: number;
  /** A step of this operation: writes its input. Nothing is written if the operation was replaced or taken over. */
  during?: OperationRecord;
}

/** A new sandbox with the operation that makes it (none: its machine is there) and its audit entry. */
export interface NewRow {
  record: SandboxRecord;
  begin?: OperationRecord;
  audit: AuditEntry;
}

export interface InsertOptions {
  /** Sandboxes that the team may have, deleted ones left out; default 0: no limit. */
  ofTeamMax?: number;
  key?: KeyedCall | undefined;
  /** In a cluster: what the sandboxes demand of their hosts. */
  room?: Room | undefined;
}

export interface SandboxChange {
  read: SandboxRecord;
  patch: SandboxPatch;
  write: SandboxWrite;
}

export interface SandboxRemoval {
  /** Ends this operation, under the same condition as SandboxWrite.end. */
  end: OperationTurn;
  audit?: AuditEntry;
  /** The call that should make the sandbox made nothing: its idempotency key may be used again. */
  freesKey?: boolean;
}

/** Another sandbox has the id or the ordinal, because another gateway was first. Nothing was written. */
export class IdTaken extends ClocheError {
  constructor() {
    super("aborted", "another call was first to take the id of the new sandbox; try again");
  }
}

/** States in which on_timeout `suspend` can act; in others it waits. */
const timeoutStates = ["SANDBOX_STATE_RUNNING", "SANDBOX_STATE_SUSPENDED", "SANDBOX_STATE_ERROR"] as const;

export class Sandboxes {
  readonly #db: Kysely<Schema>;
  readonly #changeLog: ChangeLog | undefined;

  constructor(db: Kysely<Schema>, changeLog: ChangeLog | undefined) {
    this.#db = db;
    this.#changeLog = changeLog;
  }

  async get(id: string): Promise<SandboxRecord | undefined> {
    const row = await this.#db.selectFrom("sandboxes").selectAll().where("id", "=", id).executeTakeFirst();
    return row && sandboxFromRow(row);
  }

  /** The records of these ids, without ids that have none. */
  async some(ids: readonly string[]): Promise<SandboxRecord[]> {
    const rows = await this.#db.selectFrom("sandboxes").selectAll().where("id", "in", ids).execute();
    return rows.map(sandboxFromRow);
  }

  /** A team's sandboxes, by the query and in its order. */
  list(query: SandboxQuery): Promise<SandboxRecord[]> {
    return listSandboxes(this.#db, query);
  }

  /** Sandboxes of every team. */
  async all(): Promise<SandboxRecord[]> {
    return (await this.#db.selectFrom("sandboxes").selectAll().execute()).map(sandboxFromRow);
  }

  /** Sandboxes of every team after `afterId`, by id, at most `limit`. */
  async page(afterId: string, limit: number): Promise<SandboxRecord[]> {
    const rows = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("id", ">", afterId)
      .orderBy("id")
      .limit(limit)
      .execute();
    return rows.map(sandboxFromRow);
  }

  async ofHost(hostId: string): Promise<SandboxRecord[]> {
    const rows = await this.#db.selectFrom("sandboxes").selectAll().where("host_id", "=", hostId).execute();
    return rows.map(sandboxFromRow);
  }

  /** Sandboxes that are SUSPENDED during a move to another host, at most `limit`. */
  async moving(limit: number): Promise<SandboxRecord[]> {
    const rows = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("is_moving", "=", 1)
      .where("state", "=", "SANDBOX_STATE_SUSPENDED")
      .limit(limit)
      .execute();
    return rows.map(sandboxFromRow);
  }

  /**
   * Sandboxes of a lost host that need action, at most `limit`: those that ran, suspended ones that are not durable and
   * whose owners were not told, and those without the operation that their state needs. The others are handled by their
   * operations, or when somebody asks for them.
   */
  async toRescue(hostId: string, limit: number): Promise<SandboxRecord[]> {
    const rows = await this.#db
      .selectFrom("sandboxes as s")
      .selectAll("s")
      .where("s.host_id", "=", hostId)
      .where(({ and, eb, exists, not, or, selectFrom }) =>
        or([
          eb("s.state", "in", ["SANDBOX_STATE_RUNNING", "SANDBOX_STATE_SUSPENDING"]),
          and([
            eb("s.state", "=", "SANDBOX_STATE_SUSPENDED"),
            eb("s.image", "=", ""),
            eb("s.is_host_lost", "=", 0),
          ]),
          and([
            eb("s.state", "in", [
              "SANDBOX_STATE_CREATING",
              "SANDBOX_STATE_RESUMING",
              "SANDBOX_STATE_DELETING",
            ]),
            not(exists(selectFrom("operations as o").select("o.id").whereRef("o.sandbox_id", "=", "s.id"))),
          ]),
        ]),
      )
      .limit(limit)
      .execute();
    return rows.map(sandboxFromRow);
  }

  /** Sandboxes whose time is up, earliest first, at most `limit`. */
  async expired(nowMs: number, limit: number): Promise<SandboxRecord[]> {
    const rows = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("expires_at", "<=", nowMs)
      .where(isActedOn)
      .orderBy("expires_at")
      .limit(limit)
      .execute();
    return rows.map(sandboxFromRow);
  }

  /** When the next sandbox's time is up; undefined: no sandbox expires. */
  async nextExpiryMs(): Promise<number | undefined> {
    const row = await this.#db
      .selectFrom("sandboxes")
      .select((e) => e.fn.min("expires_at").as("next"))
      .where(isActedOn)
      .executeTakeFirst();
    return row?.next ?? undefined;
  }

  /** Ids of the packs of the sandbox's image. */
  async imagePacks(sandboxId: string): Promise<string[]> {
    return await imagePacks(this.#db, sandboxId);
  }

  /** Running sandboxes whose automatic checkpoint is due, earliest first, at most `limit`. */
  async checkpointsDue(nowMs: number, limit: number): Promise<SandboxRecord[]> {
    const rows = await this.#db
      .selectFrom("sandboxes")
      .selectAll()
      .where("checkpoint_due_at", "<=", nowMs)
      .orderBy("checkpoint_due_at")
      .limit(limit)
      .execute();
    return rows.map(sandboxFromRow);
  }

  /** Sets when the next checkpoint is due. False: none was due at `nowMs`. The record's generation stays. */
  async moveCheckpoint(id: string, nowMs: number, nextMs: number): Promise<boolean> {
    const { numUpdatedRows } = await this.#db
      .updateTable("sandboxes")
      .set({ checkpoint_due_at: nextMs })
      .where("id", "=", id)
      .where("checkpoint_due_at", "<=", nowMs)
      .executeTakeFirst();
    return numUpdatedRows === 1n;
  }

  /** Whether a sandbox of this id had a record here, which was removed in the last month. */
  async wasRemoved(id: string): Promise<boolean> {
    const row = await this.#db
      .selectFrom("removed_sandboxes")
      .select("id")
      .where("id", "=", id)
      .executeTakeFirst();
    return row !== undefined;
  }

  /** Notes that the sandbox is removed, although this database has never had its record. */
  async noteRemoved(id: string, nowMs: number): Promise<void> {
    await noteRemoved(this.#db, id, nowMs);
  }

  /** Drops notes of removals before `beforeMs`. */
  async forgetRemoved(beforeMs: number): Promise<void> {
    await this.#db.deleteFrom("removed_sandboxes").where("removed_at", "<", beforeMs).execute();
  }

  /** After a restore: no sandbox's time is up before `untilMs`, because its owner may have extended it after the backup. */
  async postponeExpiries(untilMs: number): Promise<void> {
    await this.#db
      .updateTable("sandboxes")
      .set({ expires_at: untilMs })
      .where("expires_at", "<", untilMs)
      .execute();
  }

  /** The greatest ordinal given so far; 0 when there is none. */
  async lastOrdinal(): Promise<number> {
    const row = await this.#db
      .selectFrom("sandboxes")
      .select((e) => e.fn.max("ordinal").as("last"))
      .executeTakeFirst();
    return row?.last ?? 0;
  }

  /**
   * Inserts sandboxes of one team, all or none. Throws KeyTaken, IdTaken, NoRoom, or `resource_exhausted` when the
   * team's limit does not allow all of them; nothing is written then.
   */
  async insert(rows: readonly NewRow[], { ofTeamMax = 0, key, room }: InsertOptions = {}): Promise<void> {
    await this.#db.transaction().execute(async (tx) => {
      const first = rows[0]?.record;
      if (first === undefined) return;
      // Before all else: a repeated call must find its key, even when there is no room.
      if (key !== undefined) await insertKey(tx, key, first.createdAtMs);
      for (const { record, begin, audit } of rows) {
        const { numInsertedOrUpdatedRows } = await tx
          .insertInto("sandboxes")
          .values(sandboxToRow(record))
          .onConflict((conflict) => conflict.doNothing())
          .executeTakeFirst();
        if (numInsertedOrUpdatedRows !== 1n) throw new IdTaken();
        await insertMetadata(tx, record.id, record.metadata);
        if (begin !== undefined) await insertOperation(tx, begin);
        await insertAudit(tx, audit);
      }
      await this.#changeLog?.note(
        tx,
        rows.map(({ record }) => record.id),
      );
      const reservations = rows.map(({ record }) => ({ before: undefined, after: record }));
      await countSandboxes(tx, reservations, ofTeamMax);
      if (this.#isShared) await reserve(tx, reservations, room);
    });
    this.#changeLog?.announce();
  }

  /**
   * Compare-and-set on (id, state, generation). Returns the new record; undefined, and nothing is written, when the
   * record has changed or is gone, or when a condition of `write` does not hold.
   */
  async change(
    read: SandboxRecord,
    patch: SandboxPatch,
    nowMs: number,
    write: SandboxWrite = {},
  ): Promise<SandboxRecord | undefined> {
    return (await this.changeAll([{ read, patch, write }], nowMs))?.[0];
  }

  /** The same for several sandboxes: all are written, or none. */
  async changeAll(changes: readonly SandboxChange[], nowMs: number): Promise<SandboxRecord[] | undefined> {
    const nexts: SandboxRecord[] = [];
    const ids = changes.map(({ read }) => read.id);
    const isWritten = await this.#allOrNothing(
      ids,
      async (db) => {
        for (const { read, patch: wanted, write } of changes) {
          const patch = withoutPast(read, wanted);
          const next: SandboxRecord = {
            ...read,
            ...patch,
            generation: Math.max(read.generation + 1, write.generationMin ?? 0),
            updatedAtMs: Math.max(nowMs, read.updatedAtMs),
          };
          nexts.push(next);
          if (!(await writeChange(db, { read, patch, write }, next))) return false;
        }
        return true;
      },
      (db) => this.#account(db, changes, nexts),
    );
    return isWritten ? nexts : undefined;
  }

  /**
   * Removes the record with all that belongs to it, under the same conditions as `change`. That the sandbox was removed is noted for
   * a month: a machine without a record and without this note is of a newer database than this one, or of a database that is lost.
   */
  async remove(read: SandboxRecord, { freesKey, ...write }: SandboxRemoval): Promise<boolean> {
    return await this.#allOrNothing(
      [read.id],
      async (db) => {
        if (!(await writeRest(db, read.id, write))) return false;
        if (freesKey === true) await freeKeyOf(db, read.id);
        await noteRemoved(db, read.id, write.audit?.atMs ?? read.updatedAtMs);
        const result = await db
          .deleteFrom("sandboxes")
          .where("id", "=", read.id)
          .where("state", "=", read.state)
          .where("generation", "=", read.generation)
          .executeTakeFirst();
        await nameImage(db, read.id, "");
        return result.numDeletedRows === 1n;
      },
      async (db) => {
        const gone = [{ before: read, after: undefined }];
        await countSandboxes(db, gone);
        if (this.#isShared) await reserve(db, gone);
        return true;
      },
    );
  }

  async #account(
    db: Transaction<Schema>,
    changes: readonly SandboxChange[],
    nexts: readonly SandboxRecord[],
  ): Promise<boolean> {
    const reservations = changes.map(({ read }, index) => ({ before: read, after: nexts[index] }));
    await countSandboxes(db, reservations);
    if (!this.#isShared) return true;
    for (const { read, write } of changes)
      if (write.leavesLostHost === true && !(await holdLost(db, read.hostId))) return false;
    await reserve(db, reservations, changes.find(({ write }) => write.room !== undefined)?.write.room);
    return true;
  }

  get #isShared(): boolean {
    return this.#changeLog !== undefined;
  }

  async #allOrNothing(
    ids: readonly string[],
    run: (db: Transaction<Schema>) => Promise<boolean>,
    account: (db: Transaction<Schema>) => Promise<boolean>,
  ): Promise<boolean> {
    try {
      await this.#db.transaction().execute(async (tx) => {
        if (!(await run(tx))) throw new MovedOn();
        await this.#changeLog?.note(tx, ids);
        if (!(await account(tx))) throw new MovedOn();
      });
      this.#changeLog?.announce();
      return true;
    } catch (error) {
      if (error instanceof MovedOn) return false;
      throw error;
    }
  }
}

const isActedOn = ({ and, eb, or }: ExpressionBuilder<Schema, "sandboxes">) =>
  or([
    and([
      eb("on_timeout", "=", "delete"),
      eb("state", "!=", "SANDBOX_STATE_DELETING" satisfies SandboxState),
    ]),
    and([eb("on_timeout", "=", "suspend"), eb("state", "in", timeoutStates)]),
  ]);

/** Thrown to roll the transaction back; never leaves this file. */
class MovedOn extends Error {}

async function noteRemoved(db: Kysely<Schema>, id: string, nowMs: number): Promise<void> {
  await db
    .insertInto("removed_sandboxes")
    .values({ id, removed_at: nowMs })
    .onConflict((conflict) => conflict.column("id").doUpdateSet({ removed_at: nowMs }))
    .execute();
}

async function writeRest(db: Kysely<Schema>, sandboxId: string, write: SandboxWrite): Promise<boolean> {
  if (write.end !== undefined) {
    const result = await db
      .deleteFrom("operations")
      .where("sandbox_id", "=", sandboxId)
      .where("id", "=", write.end.id)
      .where("attempt", "=", write.end.attempt)
      .executeTakeFirst();
    if (result.numDeletedRows !== 1n) return false;
  }
  if (write.during !== undefined) {
    const { numUpdatedRows } = await db
      .updateTable("operations")
      .set({ input: JSON.stringify(write.during.input) })
      .where("sandbox_id", "=", sandboxId)
      .where("id", "=", write.during.id)
      .where("attempt", "=", write.during.attempt)
      .executeTakeFirst();
    if (numUpdatedRows !== 1n) return false;
  }
  if (write.begin !== undefined) {
    await db.deleteFrom("operations").where("sandbox_id", "=", sandboxId).execute();
    await insertOperation(db, write.begin);
  }
  if (write.audit !== undefined) await insertAudit(db, write.audit);
  return true;
}

async function writeChange(
  db: Kysely<Schema>,
  { read, patch, write }: SandboxChange,
  next: SandboxRecord,
): Promise<boolean> {
  const result = await db
    .updateTable("sandboxes")
    .set({ ...changedColumns(next, patch), ...checkpointDue(read, next) })
    .where("id", "=", read.id)
    .where("state", "=", read.state)
    .where("generation", "=", read.generation)
    .executeTakeFirst();
  if (result.numUpdatedRows !== 1n) return false;
  if (patch.metadata !== undefined) await writeMetadata(db, read.id, patch.metadata);
  if (patch.image !== undefined) await nameImage(db, read.id, patch.image);
  await writeUsage(db, read, next, write);
  if (next.name !== read.name) await renameIntervals(db, next);
  return await writeRest(db, read.id, write);
}

async function writeUsage(
  db: Kysely<Schema>,
  read: SandboxRecord,
  next: SandboxRecord,
  { ranUntilSeen }: SandboxWrite,
): Promise<void> {
  if (isRunning(read) === isRunning(next)) return;
  if (isRunning(next)) await openInterval(db, next);
  else await closeInterval(db, next.id, ranUntilSeen === true ? "last seen" : { ms: next.updatedAtMs });
}

async function writeMetadata(
  db: Kysely<Schema>,
  sandboxId: string,
  metadata: Record<string, string>,
): Promise<void> {
  await db.deleteFrom("sandbox_metadata").where("sandbox_id", "=", sandboxId).execute();
  await insertMetadata(db, sandboxId, metadata);
}

async function insertMetadata(
  db: Kysely<Schema>,
  sandboxId: string,
  metadata: Record<string, string>,
): Promise<void> {
  const rows = Object.entries(metadata).map(([key, value]) => ({ sandbox_id: sandboxId, key, value }));
  if (rows.length > 0) await db.insertInto("sandbox_metadata").values(rows).execute();
}

const columnOf: { [Field in keyof Required<SandboxPatch>]: keyof SandboxRow } = {
  hostId: "host_id",
  name: "name",
  state: "state",
  metadata: "metadata",
  publicPorts: "public_ports",
  egress: "egress",
  errorMessage: "error_message",
  firstRanAtMs: "first_ran_at",
  timeoutSeconds: "timeout_seconds",
  expiresAtMs: "expires_at",
  onTimeout: "on_timeout",
  idleSuspendSeconds: "idle_suspend_seconds",
  autoResume: "auto_resume",
  onHostLoss: "on_host_loss",
  checkpointEverySeconds: "checkpoint_every_seconds",
  image: "image",
  isMoving: "is_moving",
  isHostLost: "is_host_lost",
  runtime: "runtime",
};

function changedColumns(next: SandboxRecord, patch: SandboxPatch): Partial<SandboxRow> {
  const row = sandboxToRow(next);
  const columns = (Object.keys(patch) as (keyof SandboxPatch)[]).map((field) => columnOf[field]);
  return Object.fromEntries(
    [...columns, "generation", "updated_at"].map((name) => [name, row[name as keyof SandboxRow]]),
  );
}
