/**
 * The hosts of a cluster and their leases.
 *
 *   registered ──renewed in time──▶ registered
 *       │  lease runs out: not lost yet, a late renewal is accepted
 *       ▼
 *     lost ──registers again, next generation──▶ registered, awaits admission ──told which machines are its own──▶ registered
 *
 * All times are by the database's clock. The operator sets `state`, which lease and loss do not change.
 */
import { type Kysely, type RawBuilder, sql } from "kysely";
import { fromDatabaseNow } from "./database-clock.ts";
import type { HostRow, Schema } from "./schema.ts";

export type HostState = "open" | "cordoned" | "draining";

/** How a host describes itself when it registers. */
export interface HostDescription {
  id: string;
  /** host:port */
  address: string;
  cpuClass: string;
  capacityMemoryMb: number;
  version: string;
  /** The default comes first. */
  runtimes: readonly string[];
}

export interface HostRecord extends HostDescription {
  generation: number;
  leaseUntilMs: number;
  isLost: boolean;
  /** True: the host was lost and is back, but was not yet told which machines are still its own. */
  awaitsAdmission: boolean;
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

  /** Gives the host a lease with the next generation. Its reserved memory and `state` stay. */
  async register(host: HostDescription, leaseMs: number): Promise<HostRecord> {
    const described = {
      address: host.address,
      cpu_class: host.cpuClass,
      capacity_memory_mb: host.capacityMemoryMb,
      version: host.version,
      runtimes: JSON.stringify(host.runtimes),
      lease_until: this.#fromNow(leaseMs),
      lost_at: null,
    };
    const row = await this.#db
      .insertInto("hosts")
      .values({
        ...described,
        id: host.id,
        generation: 1,
        reserved_memory_mb: 0,
        state: "open",
        awaits_admission: 0,
      })
      .onConflict((conflict) =>
        conflict.column("id").doUpdateSet({
          ...described,
          generation: sql`hosts.generation + 1`,
          awaits_admission: sql`case when hosts.lost_at is null then hosts.awaits_admission else 1 end`,
        }),
      )
      .returningAll()
      .executeTakeFirstOrThrow();
    return hostFromRow(row);
  }

  /**
   * Undefined: the host is lost, or a newer generation has registered. A lease that has run out is renewed as any
   * other. Never shortens a lease: a late renewal must not cut the longer lease that the host got when it left on
   * purpose.
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

  /** Notes that this generation was told which machines are its own; false: the generation is over. */
  async admitted({ id, generation }: HostGeneration): Promise<boolean> {
    const { numUpdatedRows } = await this.#db
      .updateTable("hosts")
      .set({ awaits_admission: 0 })
      .where("lost_at", "is", null)
      .where("id", "=", id)
      .where("generation", "=", generation)
      .executeTakeFirst();
    return numUpdatedRows === 1n;
  }

  /** Takes the watch of these hosts where no other gateway holds it; returns the hosts that the watcher now has. */
  async watch(watcher: string, hostIds: readonly string[], leaseMs: number): Promise<string[]> {
    if (hostIds.length === 0) return [];
    const watch_until = this.#fromNow(leaseMs);
    const rows = await this.#db
      .insertInto("host_watches")
      // Sorted, so that two watchers never deadlock.
      .values(hostIds.toSorted().map((host_id) => ({ host_id, watcher, watch_until })))
      .onConflict((conflict) =>
        conflict
          .column("host_id")
          .doUpdateSet({ watcher, watch_until })
          .where((e) =>
            e.or([
              e("host_watches.watcher", "=", watcher),
              e("host_watches.watch_until", "<=", this.#fromNow()),
            ]),
          ),
      )
      .returning("host_id")
      .execute();
    return rows.map(({ host_id }) => host_id);
  }

  /** Renews and returns all hosts of the watcher, also those whose watch ran out and that nobody else took. */
  async renewWatches(watcher: string, leaseMs: number): Promise<string[]> {
    const rows = await this.#db
      .updateTable("host_watches")
      .set({ watch_until: this.#fromNow(leaseMs) })
      .where("watcher", "=", watcher)
      .where("watch_until", ">", 0)
      .returning("host_id")
      .execute();
    return rows.map(({ host_id }) => host_id);
  }

  /** Ids of the hosts that other gateways watch. */
  async watchedByOthers(watcher: string): Promise<string[]> {
    const rows = await this.#db
      .selectFrom("host_watches")
      .select("host_id")
      .where("watcher", "!=", watcher)
      .where("watch_until", ">", this.#fromNow())
      .execute();
    return rows.map(({ host_id }) => host_id);
  }

  /** Gives hosts of the watcher away at once; default: all. */
  async unwatch(watcher: string, hostIds?: readonly string[]): Promise<void> {
    if (hostIds?.length === 0) return;
    let update = this.#db.updateTable("host_watches").set({ watch_until: 0 }).where("watcher", "=", watcher);
    if (hostIds !== undefined) update = update.where("host_id", "in", hostIds);
    await update.execute();
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
   * Declares hosts lost whose lease ran out at least `graceMs` ago, and returns them; each is returned to one caller
   * only. Declares none while more than half of the leases have run out: then the database or the network failed, not
   * the hosts.
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
  awaitsAdmission: row.awaits_admission !== 0,
  address: row.address,
  cpuClass: row.cpu_class,
  capacityMemoryMb: row.capacity_memory_mb,
  reservedMemoryMb: row.reserved_memory_mb,
  state: row.state as HostState,
  version: row.version,
  runtimes: JSON.parse(row.runtimes) as string[],
});
