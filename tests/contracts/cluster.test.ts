/** What several gateways and hosts share, on every database. Time that has passed is a lease that was given away or ended in the past: no test waits. */
import type { Database } from "@cloche/gateway";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { clock, databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

const leaseMs = 15_000;
const graceMs = 5_000;
/** Of a lease that ran out longer ago than the grace. */
const longOverMs = -6_000;

describe.each(databaseKinds)("on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace());
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
  });
  afterEach(() => db.close());

  it("counts the gateways whose lease holds", async () => {
    expect(await db.gateways.renew("a", leaseMs)).toBe(1);
    expect(await db.gateways.renew("b", leaseMs)).toBe(2);
    expect(await db.gateways.renew("killed", longOverMs)).toBe(2);
    await db.gateways.leave("b");
    expect(await db.gateways.renew("a", leaseMs)).toBe(1);
    const all = await Promise.all(Array.from({ length: 8 }, (_, n) => db.gateways.renew(`n${n}`, leaseMs)));
    expect(Math.max(...all)).toBe(9);
  });

  describe("hosts", () => {
    const aHost = (id: string) => ({
      id,
      address: `${id}.example:7090`,
      cpuClass: "x86-64-v3",
      capacityMemoryMb: 2 ** 33,
      version: "0.1.0",
      runtimes: ["gvisor", "qemu"],
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
        awaitsAdmission: false,
        reservedMemoryMb: 0,
        state: "open",
      });
      // SQLite has the process's clock, which stands in January; that of PostgreSQL runs.
      const nowMs = kind.name === "SQLite" ? clock.nowMs() : Date.now();
      expect(Math.abs(first.leaseUntilMs - leaseMs - nowMs)).toBeLessThan(60_000);
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

    it("keep what they were told when they left: a late renewal shortens nothing", async () => {
      const host = await register("a");
      const left = await db.hosts.renew(host, 20 * leaseMs);
      expect(await db.hosts.renew(host, leaseMs)).toMatchObject({ leaseUntilMs: left?.leaseUntilMs });
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

  describe("operations of several gateways", () => {
    const put = async (count: number, owner: string) => {
      const rows = Array.from({ length: count }, () => {
        const row = rowOf(aSandbox());
        return { ...row, begin: { ...row.begin, owner } };
      });
      await db.sandboxes.insert(rows);
      return rows.map(({ begin }) => begin);
    };

    it("are taken over together by one of many, and only when their lease is over", async () => {
      const [own] = await put(1, "b");
      const group = await put(6, "a");
      const takers = Array.from({ length: 6 }, (_, index) => `taker-${index}`);
      const take = () => Promise.all(takers.map((taker) => db.operations.takeOver(taker, [])));
      expect((await take()).flat()).toEqual([]);
      await db.operations.release("a");
      const taken = (await take()).filter((found) => found.length > 0);
      expect(taken.map((found) => found.map(({ id, attempt }) => [id, attempt]).toSorted())).toEqual([
        group.map(({ id }) => [id, 2]).toSorted(),
      ]);
      expect(await db.operations.ofSandbox(own?.sandboxId ?? "")).toEqual(own);
      expect((await take()).flat()).toEqual([]);
    });

    it("are their owner's to renew, and not taken over where they run", async () => {
      const [a] = await put(1, "a");
      const [b] = await put(1, "b");
      const ids = [a?.id ?? "", b?.id ?? ""];
      expect(await db.operations.renew("a", ids)).toEqual([a?.id]);
      await db.operations.release("a");
      expect(await db.operations.takeOver("a", ids)).toEqual([]);
      expect(await db.operations.takeOver("a", [])).toMatchObject([{ id: a?.id, owner: "a", attempt: 2 }]);
    });

    it("refuse what a former owner still writes", async () => {
      const [old] = await put(1, "a");
      const record = await db.sandboxes.get(old?.sandboxId ?? "");
      if (old === undefined || record === undefined) throw new Error("nothing was made");
      await db.operations.release("a");
      const [taken] = await db.operations.takeOver("b", []);
      expect(await db.operations.save({ ...old, direction: "back" }, nowMs)).toBe(false);
      const running = { state: "SANDBOX_STATE_RUNNING" } as const;
      expect(await db.sandboxes.change(record, running, nowMs, { end: old })).toBeUndefined();
      expect(await db.sandboxes.remove(record, { end: old })).toBe(false);
      const group = { id: "g", sandboxIds: [record.id] };
      await db.operations.turnBack(group, { ...old, failure: "late" }, nowMs);
      expect(await db.operations.ofSandbox(record.id)).toEqual(taken);
      expect(await db.sandboxes.change(record, running, nowMs, { end: taken ?? old })).toBeDefined();
    });
  });

  describe("the log of changes", () => {
    let shared: Database;
    let place: string;
    beforeEach(async () => {
      place = await kind.newPlace();
      shared = await kind.open(place, true);
      await shared.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
    });
    afterEach(() => shared.close());
    const logOf = (database: Database) => {
      if (database.changeLog === undefined) throw new Error("it keeps no log");
      return database.changeLog;
    };

    it("names what was written, once it is, and tells the readers", async () => {
      const log = logOf(shared);
      let told = 0;
      const listening = log.listen(() => (told += 1));
      // PostgreSQL: it hears from here on.
      if (kind.name !== "SQLite") await expect.poll(() => told, { timeout: 10_000 }).toBe(1);
      const before = told;
      const [a, b] = [aSandbox(), aSandbox()];
      await shared.sandboxes.insert([rowOf(a), rowOf(b)]);
      await expect.poll(() => told, { timeout: 10_000 }).toBeGreaterThan(before);
      await expect(shared.sandboxes.insert([rowOf(a)])).rejects.toThrow();
      const changed = await shared.sandboxes.change(a, { name: "x" }, nowMs);
      expect(await shared.sandboxes.change(a, { name: "y" }, nowMs)).toBeUndefined();
      const operation = await shared.operations.ofSandbox(a.id);
      if (changed === undefined || operation === undefined) throw new Error("not written");
      await shared.sandboxes.remove(changed, { end: operation });
      const found = await log.read(0, [], 10);
      expect(found.map(({ sandboxId }) => sandboxId)).toEqual([a.id, b.id, a.id, a.id]);
      const sequences = found.map(({ sequence }) => sequence);
      expect(await log.newest(2)).toEqual(sequences.slice(-2));
      const [first = 0, , third = 0, last = 0] = sequences;
      expect((await log.read(third, [first], 10)).map(({ sequence }) => sequence)).toEqual([first, last]);
      await log.prune(60_000);
      expect(await log.newest(10)).toHaveLength(4);
      await log.prune(-60_000);
      expect(await log.newest(10)).toEqual([]);
      await listening.close();
    });

    it("is not kept by a gateway that is alone", async () => {
      await db.sandboxes.insert([rowOf(aSandbox())]);
      expect(db.changeLog).toBeUndefined();
      await shared.sandboxes.insert([rowOf(aSandbox())]);
      expect(await logOf(shared).newest(10)).toHaveLength(1);
    });
  });

  it("a secret is the first that was put there, for all", async () => {
    const kept = await Promise.all(["1", "2", "3"].map((value) => db.secrets.keep("authority", value)));
    expect(new Set(kept).size).toBe(1);
    expect(await db.secrets.keep("authority", "4")).toBe(kept[0]);
    expect(await db.secrets.keep("another", "5")).toBe("5");
  });

  it("of those that use a name at once one is first, and of those that replace a value one", async () => {
    const { secrets } = db;
    const added = await Promise.all(["1", "2", "3"].map((value) => secrets.add("used/a", value)));
    expect(added.filter(Boolean)).toHaveLength(1);
    await secrets.add("used/b", "4");
    await secrets.add("unused", "5");
    const names = async () => (await secrets.list("used/")).map(({ name }) => name);
    expect(await names()).toEqual(["used/a", "used/b"]);
    const found = { name: "used/b", value: "4" };
    const replaced = await Promise.all(["6", "7"].map((next) => secrets.replace(found, next)));
    expect(replaced.filter(Boolean)).toHaveLength(1);
    expect(await secrets.replace(found, "8")).toBe(false);
    expect((await secrets.list("used/b"))[0]?.value).toMatch(/^[67]$/);
    await secrets.remove("used/b");
    expect(await names()).toEqual(["used/a"]);
  });

  it("an id or an ordinal is given once, whoever is first", async () => {
    const first = aSandbox();
    await db.sandboxes.insert([rowOf(first)]);
    const { id, ordinal } = first;
    for (const second of [aSandbox({ id }), aSandbox({ ordinal })])
      await expect(db.sandboxes.insert([rowOf(aSandbox()), rowOf(second)])).rejects.toMatchObject({
        code: "aborted",
      });
    expect(await db.sandboxes.all()).toEqual([first]);
    expect(await db.operations.all()).toHaveLength(1);
  });
});
