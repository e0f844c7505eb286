/** Sandboxes that are made together, on every database: inserted, published and turned back as one. */
import type { Database } from "@cloche/gateway";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { anOperation, aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

describe.each(databaseKinds)("groups of sandboxes on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace());
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
  });
  afterEach(() => db.close());

  const some = (count: number) => Array.from({ length: count }, () => aSandbox({ teamId: "team-a" }));
  const put = async (count: number) => {
    const records = some(count);
    await db.sandboxes.insert(records.map(rowOf));
    return { records, group: { id: "0123456789abcdef0123", sandboxIds: records.map(({ id }) => id) } };
  };
  const toRunning = async (records: Awaited<ReturnType<typeof put>>["records"]) =>
    await Promise.all(
      records.map(async (read) => ({
        read,
        patch: { state: "SANDBOX_STATE_RUNNING" as const },
        write: { end: (await db.operations.ofSandbox(read.id)) ?? anOperation() },
      })),
    );

  it("are inserted as one, where there is room for all", async () => {
    await put(2);
    const rows = some(3).map(rowOf);
    await expect(db.sandboxes.insert(rows, { ofTeamMax: 4 })).rejects.toThrow(/2 sandboxes, and 3 more/);
    expect(await db.sandboxes.all()).toHaveLength(2);
    await db.sandboxes.insert(rows, { ofTeamMax: 5 });
    expect(await db.sandboxes.all()).toHaveLength(5);
  });

  it("change as one: none where one has moved on", async () => {
    const { records } = await put(3);
    const changes = await toRunning(records);
    await db.sandboxes.change(records[2] ?? aSandbox(), { name: "renamed" }, nowMs);
    expect(await db.sandboxes.changeAll(changes, nowMs)).toBeUndefined();
    const states = async () => (await db.sandboxes.all()).map(({ state }) => state);
    expect(await states()).toEqual(Array(3).fill("SANDBOX_STATE_CREATING"));
    expect(await db.operations.all()).toHaveLength(3);
    const again = await toRunning(await db.sandboxes.all());
    expect((await db.sandboxes.changeAll(again, nowMs))?.map(({ state }) => state)).toEqual(
      Array(3).fill("SANDBOX_STATE_RUNNING"),
    );
    expect(await db.operations.all()).toEqual([]);
    expect(await db.usage.open(records.map(({ id }) => id))).toHaveLength(3);
  });

  it("turn back as one, without those that are deleted or not of the group", async () => {
    const { records, group } = await put(3);
    const other = await put(1);
    const [deleted] = records;
    const begin = anOperation({ sandboxId: deleted?.id ?? "", kind: "delete" });
    await db.sandboxes.change(deleted ?? aSandbox(), { state: "SANDBOX_STATE_DELETING" }, nowMs, { begin });
    expect((await db.operations.ofGroup(group)).map(({ sandboxId }) => sandboxId).toSorted()).toEqual(
      group.sandboxIds.slice(1).toSorted(),
    );
    const all = {
      owner: "",
      input: { group, isRefused: true },
      failure: "no room",
    };
    await db.operations.turnBack(group, all, nowMs);
    // The first failure counts.
    await db.operations.turnBack(group, { ...all, failure: "later" }, nowMs);
    const found = new Map((await db.operations.all()).map((one) => [one.sandboxId, one]));
    for (const id of group.sandboxIds.slice(1))
      expect(found.get(id)).toMatchObject({ direction: "back", ...all });
    expect(found.get(deleted?.id ?? "")).toMatchObject({ kind: "delete", direction: "forward" });
    expect(found.get(other.records[0]?.id ?? "")).toMatchObject({ direction: "forward", failure: "" });
  });
});
