/**
 * What sandboxes take of their hosts' memory: `hosts.reserved_memory_mb` changes in the very transaction that changes the state or
 * the host of a record, so that it is always the sum. CREATING, RUNNING, SUSPENDING and RESUMING take the sandbox's memory; a sandbox in
 * any other state takes none. Rows of hosts are the last that a transaction takes, in the order of their ids: no two wait for each other.
 */
import { ClocheError, type SandboxState } from "@cloche/protocol";
import { type Kysely, sql } from "kysely";
import { gatewayLimits } from "../limits.ts";
import type { SandboxRecord } from "./sandbox-record.ts";
import type { Schema } from "./schema.ts";

/**
 * What a host must have for what is to be taken of it. `new`: it takes new machines, and has the room. `kept`: the room, for a
 * machine that it has; it may be cordoned. Default: nothing, for what cannot be refused any more.
 */
export type Room = "new" | "kept";

/** The host did not have the room, or takes no new machines. Nothing was written. */
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

/** `undefined`: there is no such record, before or after. */
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

/** Within the transaction of the write, as its last statements. Throws NoRoom. */
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
