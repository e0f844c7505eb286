/** The leases of hosts, on every database. Time that has passed is a lease given with an end in the past: no test waits. */
import type { Database } from "@cloche/gateway";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { databaseKinds } from "./database-kinds.ts";

const leaseMs = 15_000;
const graceMs = 5_000;
/** Of a lease that ran out longer ago than the grace. */
const longOverMs = -6_000;

describe.each(databaseKinds)("hosts on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace());
  });
  afterEach(() => db.close());

  const aHost = (id: string) => ({
    id,
    address: `${id}.example:7090`,
    zone: "z1",
    cpuClass: "x86-64-v3",
    capacityMemoryMb: 2 ** 33,
    version: "0.1.0",
  });
  const register = (id: string, ms = leaseMs) => db.hosts.register(aHost(id), ms);
  const lostIds = async () => (await db.hosts.declareLost(graceMs)).map(({ id }) => id).toSorted();

  it("register with the next generation each time, by the database's clock", async () => {
    const first = await register("a");
    expect(first).toEqual({
      ...aHost("a"),
      generation: 1,
      leaseUntilMs: first.leaseUntilMs,
      isLost: false,
      reservedMemoryMb: 0,
      state: "open",
    });
    // The process's clock stands in January (database-kinds.ts).
    expect(Math.abs(first.leaseUntilMs - leaseMs - Date.now())).toBeLessThan(60_000);
    await db.hosts.setState("a", "draining");
    expect(await register("a")).toMatchObject({ generation: 2, state: "draining" });
    const generations = await Promise.all(Array.from({ length: 10 }, () => register("a")));
    expect(new Set(generations.map(({ generation }) => generation)).size).toBe(10);
    expect((await db.hosts.all()).map(({ id, generation }) => [id, generation])).toEqual([["a", 12]]);
    expect(await db.hosts.setState("none", "open")).toBe(false);
  });

  it("renew their own generation only, late too, until they are declared lost", async () => {
    const old = await register("a", longOverMs);
    await Promise.all(["b", "c"].map((id) => register(id)));
    expect(await db.hosts.leases()).toEqual({ count: 3, expired: 1 });
    const renewed = await db.hosts.renew(old, longOverMs);
    expect(renewed?.leaseUntilMs).toBeGreaterThanOrEqual(old.leaseUntilMs);
    expect(await lostIds()).toEqual(["a"]);
    expect(await db.hosts.renew(old, leaseMs)).toBeUndefined();
    expect(await db.hosts.leases()).toEqual({ count: 2, expired: 0 });
    const next = await register("a");
    expect(next).toMatchObject({ generation: 2, isLost: false });
    expect(await db.hosts.renew(old, leaseMs)).toBeUndefined();
    expect(await db.hosts.renew(next, leaseMs)).toMatchObject({ generation: 2 });
    expect(await db.hosts.renew({ id: "none", generation: 1 }, leaseMs)).toBeUndefined();
  });

  it("are lost after the grace, each told to one of many callers", async () => {
    await register("just-over", -1_000);
    await register("over", longOverMs);
    await Promise.all(["c", "d", "e"].map((id) => register(id)));
    const told = await Promise.all(Array.from({ length: 8 }, () => db.hosts.declareLost(graceMs)));
    expect(told.flat()).toEqual([{ id: "over", generation: 1 }]);
    expect((await db.hosts.all()).filter(({ isLost }) => isLost).map(({ id }) => id)).toEqual(["over"]);
  });

  it("are never lost while more than half of the leases have run out", async () => {
    await Promise.all(["a", "b", "c"].map((id) => register(id, longOverMs)));
    await Promise.all(["d", "e"].map((id) => register(id)));
    expect(await lostIds()).toEqual([]);
    await register("f");
    expect(await lostIds()).toEqual(["a", "b", "c"]);
    expect(await lostIds()).toEqual([]);
  });
});
