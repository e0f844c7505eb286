/**
 * The hosts of a cluster and their leases.
 *
 *   registered ──renewed in time──▶ registered
 *       │  lease runs out: still its own; a late renewal holds
 *       ▼
 *     lost ──registers again, next generation──▶ registered
 *
 * Every time here is the database's. `state` is the operator's word and outlives lease and loss.
 */
import { type Kysely, type RawBuilder, sql } from "kysely";
import { fromDatabaseNow } from "./database-clock.ts";
import type { HostRow, Schema } from "./schema.ts";

export type HostState = "open" | "cordoned" | "draining";

/** What a host says of itself when it registers. */
export interface HostDescription {
  id: string;
  /** host:port */
  address: string;
  zone: string;
  cpuClass: string;
  capacityMemoryMb: number;
  version: string;
}

export interface HostRecord extends HostDescription {
  generation: number;
  leaseUntilMs: number;
  isLost: boolean;
  reservedMemoryMb: number;
  state: HostState;
}

export type HostGeneration = Pick<HostRecord, "id" | "generation">;

export class Hosts {
  readonly #db: Kysely<Schema>;

  constructor(db: Kysely<Schema>) {
    this.#db = db;
  }

  /** By id. */
  async all(): Promise<HostRecord[]> {
    return (await this.#db.selectFrom("hosts").selectAll().orderBy("id").execute()).map(hostFromRow);
  }

  /** Gives the host a lease with the next generation. What it has reserved and the operator's word stay. */
  async register(host: HostDescription, leaseMs: number): Promise<HostRecord> {
    const said = {
      address: host.address,
      zone: host.zone,
      cpu_class: host.cpuClass,
      capacity_memory_mb: host.capacityMemoryMb,
      version: host.version,
      lease_until: this.#fromNow(leaseMs),
      lost_at: null,
    };
    const row = await this.#db
      .insertInto("hosts")
      .values({ ...said, id: host.id, generation: 1, reserved_memory_mb: 0, state: "open" })
      .onConflict((conflict) =>
        conflict.column("id").doUpdateSet({ ...said, generation: sql`hosts.generation + 1` }),
      )
      .returningAll()
      .executeTakeFirstOrThrow();
    return hostFromRow(row);
  }

  /**
   * Undefined: the host is lost or a newer generation registered. A lease that has run out is renewed as any other. Never shortens a
   * lease: a renewal that arrives late must not take back what the host was told when it left.
   */
  async renew({ id, generation }: HostGeneration, leaseMs: number): Promise<HostRecord | undefined> {
    const untilMs = this.#fromNow(leaseMs);
    const row = await this.#db
      .updateTable("hosts")
      .set({
        lease_until: sql<number>`case when lease_until > ${untilMs} then lease_until else ${untilMs} end`,
      })
      .where("id", "=", id)
      .where("generation", "=", generation)
      .where("lost_at", "is", null)
      .returningAll()
      .executeTakeFirst();
    return row && hostFromRow(row);
  }

  /** False: there is no such host. */
  async setState(id: string, state: HostState): Promise<boolean> {
    const { numUpdatedRows } = await this.#db
      .updateTable("hosts")
      .set({ state })
      .where("id", "=", id)
      .executeTakeFirst();
    return numUpdatedRows === 1n;
  }

  /** Of the hosts not lost: how many there are, and of how many the lease has run out. */
  async leases(): Promise<{ count: number; expired: number }> {
    const row = await this.#db
      .selectFrom("hosts")
      .select((e) => [e.fn.countAll().as("count"), this.#countExpired.as("expired")])
      .where("lost_at", "is", null)
      .executeTakeFirstOrThrow();
    return { count: Number(row.count), expired: Number(row.expired ?? 0) };
  }

  /**
   * Declares lost whose lease ran out `graceMs` ago or earlier, and answers those: each is answered to one caller only. Nobody
   * while more than half of the leases have run out: then the database or the network was away, not the hosts.
   */
  async declareLost(graceMs: number): Promise<HostGeneration[]> {
    const isMajorityThere = sql<boolean>`(
      select ${this.#countExpired} * 2 <= count(*) from hosts where lost_at is null
    )`;
    return await this.#db
      .updateTable("hosts")
      .set({ lost_at: this.#fromNow() })
      .where("lost_at", "is", null)
      .where("lease_until", "<=", this.#fromNow(-graceMs))
      .where(isMajorityThere)
      .returning(["id", "generation"])
      .execute();
  }

  get #countExpired(): RawBuilder<number> {
    return sql<number>`sum(case when lease_until <= ${this.#fromNow()} then 1 else 0 end)`;
  }

  #fromNow(ms = 0): RawBuilder<number> {
    return fromDatabaseNow(this.#db, ms);
  }
}

const hostFromRow = (row: HostRow): HostRecord => ({
  id: row.id,
  generation: row.generation,
  leaseUntilMs: row.lease_until,
  isLost: row.lost_at !== null,
  address: row.address,
  zone: row.zone,
  cpuClass: row.cpu_class,
  capacityMemoryMb: row.capacity_memory_mb,
  reservedMemoryMb: row.reserved_memory_mb,
  state: row.state as HostState,
  version: row.version,
});
