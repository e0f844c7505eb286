/** What sandboxes take of their hosts, who watches a host, and what a lost one is told, on every database. */
import { type Database } from "@cloche/gateway";
import type { SandboxState } from "@cloche/protocol";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { SandboxRecord } from "../../packages/gateway/src/database/sandbox-record.ts";
import { anOperation, aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { aHost } from "../../packages/gateway/src/testing/fleet-world.ts";
import { databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

const leaseMs = 15_000;
const longOverMs = -60_000;
/** Of each host and of each sandbox. */
const capacityMemoryMb = 4_096;
const memoryMb = 1_024;

describe.each(databaseKinds)("on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace(), true);
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
    for (const id of ["h-1", "h-2", "h-3"]) await register(id);
  });
  afterEach(() => db.close());

  const register = (id: string, ms = leaseMs) => db.hosts.register({ ...aHost(id), capacityMemoryMb }, ms);
  const lose = async (id: string) => {
    await register(id, longOverMs);
    expect((await db.hosts.declareLost(0)).map((host) => host.id)).toEqual([id]);
  };
  const row = async (id: string) => (await db.hosts.all()).find((host) => host.id === id);
  const reserved = async (id: string) => (await row(id))?.reservedMemoryMb;
  const on = (hostId: string) => rowOf(aSandbox({ hostId, memoryMb }));
  const put = async (hostId: string): Promise<SandboxRecord> => {
    const made = on(hostId);
    await db.sandboxes.insert([made], { room: "new" });
    return made.record;
  };
  const toState = async (record: SandboxRecord, state: SandboxState) => {
    const changed = await db.sandboxes.change(record, { state }, nowMs);
    if (changed === undefined) throw new Error("it moved on");
    return changed;
  };

  describe("memory of hosts", () => {
    it("is taken while a machine is there or may be, and given back in the same write", async () => {
      let record = await put("h-1");
      const seen = [await reserved("h-1")];
      for (const state of ["RUNNING", "SUSPENDING", "SUSPENDED", "RESUMING", "ERROR"] as const) {
        record = await toState(record, `SANDBOX_STATE_${state}`);
        seen.push(await reserved("h-1"));
      }
      expect(seen).toEqual([memoryMb, memoryMb, memoryMb, 0, memoryMb, 0]);
      const other = await put("h-1");
      const operation = await db.operations.ofSandbox(other.id);
      await db.sandboxes.remove(other, { end: operation ?? anOperation() });
      expect(await reserved("h-1")).toBe(0);
    });

    it("is given by a host that has it, and never twice", async () => {
      const tries = await Promise.allSettled(Array.from({ length: 12 }, () => put("h-1")));
      expect(tries.filter(({ status }) => status === "fulfilled")).toHaveLength(4);
      const refused = tries.find(({ status }) => status === "rejected") as PromiseRejectedResult;
      expect(refused.reason).toMatchObject({ code: "unavailable", hostId: "h-1", retryAfterSeconds: 5 });
      expect(await reserved("h-1")).toBe(capacityMemoryMb);
      expect(await db.sandboxes.all()).toHaveLength(4);
      expect(await db.operations.all()).toHaveLength(4);
    });

    it("is given to all of a group or to none", async () => {
      const five = Array.from({ length: 5 }, () => on("h-1"));
      await expect(db.sandboxes.insert(five, { room: "new" })).rejects.toMatchObject({ hostId: "h-1" });
      const mixed = [...five.slice(1), on("h-2")];
      await db.sandboxes.insert(mixed, { room: "new" });
      expect([await reserved("h-1"), await reserved("h-2")]).toEqual([capacityMemoryMb, memoryMb]);
    });

    it("is given to new machines by open hosts alone, to those that they have by cordoned ones too", async () => {
      const suspended = await toState(
        await toState(await put("h-1"), "SANDBOX_STATE_RUNNING"),
        "SANDBOX_STATE_SUSPENDED",
      );
      for (const state of ["cordoned", "draining"] as const) {
        await db.hosts.setState("h-1", state);
        await expect(put("h-1")).rejects.toMatchObject({ hostId: "h-1" });
      }
      const resuming = { state: "SANDBOX_STATE_RESUMING" } as const;
      expect(await db.sandboxes.change(suspended, resuming, nowMs, { room: "kept" })).toBeDefined();
      await db.hosts.setState("h-1", "open");
      for (let index = 0; index < 3; index += 1) await put("h-1");
      const another = await toState(await put("h-2"), "SANDBOX_STATE_SUSPENDED");
      const there = await db.sandboxes
        .change(another, { ...resuming, hostId: "h-1" }, nowMs, { room: "new" })
        .catch(String);
      expect(there).toMatch("no host has room");
      expect((await db.sandboxes.get(another.id))?.generation).toBe(another.generation);
      await lose("h-3");
      await expect(put("h-3")).rejects.toMatchObject({ hostId: "h-3" });
      await register("h-3");
      // Until it was told which machines are its own.
      await expect(put("h-3")).rejects.toMatchObject({ hostId: "h-3" });
    });

    it("goes with a sandbox that moves, from the one host to the other", async () => {
      const running = await toState(await put("h-1"), "SANDBOX_STATE_RUNNING");
      await db.sandboxes.change(running, { hostId: "h-2" }, nowMs, { room: "new" });
      expect([await reserved("h-1"), await reserved("h-2")]).toEqual([0, memoryMb]);
      // Both ways at once: neither waits for the other for ever.
      const all = await Promise.all(["h-1", "h-1", "h-1", "h-1", "h-2", "h-2", "h-2"].map(put));
      const toAndFro = async (record: SandboxRecord): Promise<void> => {
        for (let read = record, moves = 0; moves < 8; moves += 1) {
          const hostId = read.hostId === "h-1" ? "h-2" : "h-1";
          read = (await db.sandboxes.change(read, { hostId }, nowMs)) ?? read;
        }
      };
      await Promise.all(all.map(toAndFro));
      expect([await reserved("h-1"), await reserved("h-2")]).toEqual([4 * memoryMb, 4 * memoryMb]);
    });

    it("is counted by nobody in the database of one gateway", async () => {
      const alone = await kind.open(await kind.newPlace());
      await alone.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
      await alone.hosts.register(aHost("h-1"), leaseMs);
      await alone.sandboxes.insert([on("h-1")]);
      expect((await alone.hosts.all())[0]?.reservedMemoryMb).toBe(0);
      await alone.close();
    });
  });

  it("a sandbox leaves a lost host only while that is lost", async () => {
    const record = await toState(await put("h-1"), "SANDBOX_STATE_RUNNING");
    const leave = () => db.sandboxes.change(record, { hostId: "h-2" }, nowMs, { leavesLostHost: true });
    expect(await leave()).toBeUndefined();
    await lose("h-1");
    await register("h-1");
    expect(await leave()).toBeUndefined();
    expect(await reserved("h-1")).toBe(memoryMb);
    await lose("h-1");
    expect(await leave()).toMatchObject({ hostId: "h-2" });
    expect([await reserved("h-1"), await reserved("h-2")]).toEqual([0, memoryMb]);
  });

  it("a host that was lost awaits admission, over further registrations, until its own generation was told", async () => {
    expect(await register("h-1")).toMatchObject({ awaitsAdmission: false });
    await lose("h-1");
    const first = await register("h-1");
    const second = await register("h-1");
    expect([first.awaitsAdmission, second.awaitsAdmission]).toEqual([true, true]);
    expect(await db.hosts.admitted(first)).toBe(false);
    expect(await row("h-1")).toMatchObject({ awaitsAdmission: true });
    expect(await db.hosts.admitted(second)).toBe(true);
    expect(await register("h-1")).toMatchObject({ awaitsAdmission: false });
  });

  it("one gateway watches a host until its lease is over or given back", async () => {
    const ids = ["h-1", "h-2", "h-3"];
    const takers = Array.from({ length: 6 }, (_, index) => `g-${index}`);
    const taken = await Promise.all(takers.map((taker) => db.hosts.watch(taker, ids, leaseMs)));
    expect(taken.flat().toSorted()).toEqual(ids);
    const [watcher = ""] = takers.filter((_, index) => taken[index]?.includes("h-1"));
    const other = watcher === "g-0" ? "g-1" : "g-0";
    expect(await db.hosts.watch(other, ["h-1"], leaseMs)).toEqual([]);
    expect(await db.hosts.watch(watcher, ["h-1"], longOverMs)).toEqual(["h-1"]);
    expect(await db.hosts.watch(other, ["h-1"], leaseMs)).toEqual(["h-1"]);
    expect(await db.hosts.watch(watcher, ["h-1"], leaseMs)).toEqual([]);
    expect(await db.hosts.watchedByOthers(watcher)).toContain("h-1");
    expect(await db.hosts.renewWatches(watcher, leaseMs)).not.toContain("h-1");
    await db.hosts.unwatch(other, ["h-1"]);
    expect(await db.hosts.renewWatches(other, leaseMs)).not.toContain("h-1");
    expect(await db.hosts.watch(watcher, ["h-1"], leaseMs)).toEqual(["h-1"]);
    expect(await db.hosts.watch(watcher, [], leaseMs)).toEqual([]);
  });

  it("records, operations and intervals are found by their host and their ids", async () => {
    const [one, two] = [await put("h-1"), await put("h-2")];
    expect((await db.sandboxes.ofHost("h-1")).map(({ id }) => id)).toEqual([one.id]);
    expect((await db.operations.ofHost("h-2")).map(({ sandboxId }) => sandboxId)).toEqual([two.id]);
    const running = await toState(one, "SANDBOX_STATE_RUNNING");
    await toState(two, "SANDBOX_STATE_RUNNING");
    expect(await db.usage.open([running.id, "sbx-none"])).toHaveLength(1);
  });

  it("an operation has the number that the record has with it", async () => {
    const record = await put("h-1");
    expect(await db.operations.ofSandbox(record.id)).toMatchObject({ number: 1 });
    const begin = anOperation({ sandboxId: record.id, number: record.generation + 1 });
    await db.sandboxes.change(record, { state: "SANDBOX_STATE_DELETING" }, nowMs, { begin });
    const { generation } = (await db.sandboxes.get(record.id)) ?? record;
    expect(await db.operations.ofSandbox(record.id)).toMatchObject({ number: generation });
  });
});
