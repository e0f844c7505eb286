/**
 * Memory that sandboxes reserve on their hosts. `hosts.reserved_memory_mb` changes in the transaction that changes the
 * state or the host of a record, so it is always the sum. Sandboxes in CREATING, RUNNING, SUSPENDING and RESUMING
 * reserve their memory; in other states none. A transaction locks rows of hosts last, in the order of their ids, so
 * that none deadlock.
 */
import { ClocheError, type SandboxState } from "@cloche/protocol";
import { type Kysely, sql } from "kysely";
import { gatewayLimits } from "../limits.ts";
import type { SandboxRecord } from "./sandbox-record.ts";
import type { Schema } from "./schema.ts";

/**
 * What a reservation demands of the host. `new`: the host takes new machines, and has the room. `kept`: it has the room
 * for a machine that it has already; it may be cordoned. Default: nothing, for changes that cannot be refused any more.
 */
export type Room = "new" | "kept";

/** The host has no room, or takes no new machines. Nothing was written. */
export class NoRoom extends ClocheError {
  readonly hostId: string;

  constructor(hostId: string) {
    super("unavailable", "no host has room for the sandbox now; try again later", {
      retryAfterSeconds: gatewayLimits.noHostRetrySeconds,
    });
    this.hostId = hostId;
  }
}

export type Reserving = Pick<SandboxRecord, "hostId" | "memoryMb" | "state">;

/** A record before and after the write; `undefined`: there is none. */
export interface Reservation {
  before: Reserving | undefined;
  after: Reserving | undefined;
}

const takingStates: ReadonlySet<SandboxState> = new Set<SandboxState>([
  "SANDBOX_STATE_CREATING",
  "SANDBOX_STATE_RUNNING",
  "SANDBOX_STATE_SUSPENDING",
  "SANDBOX_STATE_RESUMING",
]);

export const takenMb = ({ state, memoryMb }: Reserving): number => (takingStates.has(state) ? memoryMb : 0);

/** Call it within the write's transaction, as its last statements. Throws NoRoom. */
export async function reserve(
  db: Kysely<Schema>,
  reservations: readonly Reservation[],
  room?: Room,
): Promise<void> {
  const changes = new Map<string, number>();
  const add = (hostId: string, mb: number): unknown => changes.set(hostId, (changes.get(hostId) ?? 0) + mb);
  for (const { before, after } of reservations) {
    if (before !== undefined) add(before.hostId, -takenMb(before));
    if (after !== undefined) add(after.hostId, takenMb(after));
  }
  for (const [hostId, mb] of [...changes].toSorted(([a], [b]) => (a < b ? -1 : 1))) {
    if (mb === 0) continue;
    const isReserved = await reserveOf(db, hostId, mb, mb > 0 ? room : undefined);
    if (!isReserved && mb > 0 && room !== undefined) throw new NoRoom(hostId);
  }
}

async function reserveOf(db: Kysely<Schema>, hostId: string, mb: number, room?: Room): Promise<boolean> {
  let update = db
    .updateTable("hosts")
    .set((e) => ({ reserved_memory_mb: e("reserved_memory_mb", "+", mb) }))
    .where("id", "=", hostId);
  if (room !== undefined)
    update = update
      .where("lost_at", "is", null)
      .where(sql<boolean>`reserved_memory_mb + ${mb} <= capacity_memory_mb`);
  if (room === "new") update = update.where("state", "=", "open").where("awaits_admission", "=", 0);
  return (await update.executeTakeFirst()).numUpdatedRows === 1n;
}

/** Holds the host's row, so that it stays lost until the transaction ends. False: it is not lost. */
export async function holdLost(db: Kysely<Schema>, hostId: string): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("hosts")
    .set((e) => ({ state: e.ref("state") }))
    .where("id", "=", hostId)
    .where("lost_at", "is not", null)
    .executeTakeFirst();
  return numUpdatedRows === 1n;
}
