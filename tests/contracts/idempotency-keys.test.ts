/** Idempotency keys on every database: written with the sandboxes that they stand for, by one call of several. */
import type { Database } from "@cloche/gateway";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { anOperation, aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

describe.each(databaseKinds)("idempotency keys on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace());
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
  });
  afterEach(() => db.close());

  const keyOf = (sandboxId: string, changes: object = {}) => ({
    teamId: "team-a",
    key: "k",
    requestHash: "hash",
    sandboxIds: [sandboxId],
    expiresAtMs: nowMs + 100,
    ...changes,
  });
  const insertKeyed = async (changes: object = {}) => {
    const record = aSandbox({ teamId: "team-a" });
    await db.sandboxes.insert([rowOf(record)], { key: keyOf(record.id, changes) });
    return record;
  };

  it("are written with the sandbox, and by one of several calls at once", async () => {
    const made = await Promise.allSettled(Array.from({ length: 5 }, () => insertKeyed()));
    const won = made.filter((one) => one.status === "fulfilled");
    expect(won).toHaveLength(1);
    const lost = made.filter((one) => one.status === "rejected");
    expect(lost.map(({ reason }) => (reason as Error).name)).toEqual(Array(4).fill("KeyTaken"));
    const id = won[0]?.value.id ?? "";
    expect(await db.idempotencyKeys.find("team-a", "k", nowMs)).toEqual(keyOf(id));
    expect((await db.sandboxes.all()).map((one) => one.id)).toEqual([id]);
    expect(await db.idempotencyKeys.find("team-b", "k", nowMs)).toBeUndefined();
  });

  it("need no room, and are not written where there is none", async () => {
    const record = await insertKeyed();
    const other = aSandbox({ teamId: "team-a" });
    const put = (key: string) =>
      db.sandboxes.insert([rowOf(other)], { ofTeamMax: 1, key: keyOf(other.id, { key }) });
    await expect(put("k")).rejects.toThrow("has the idempotency key");
    await expect(put("l")).rejects.toThrow("at most 1");
    expect(await db.idempotencyKeys.find("team-a", "l", nowMs)).toBeUndefined();
    expect((await db.sandboxes.all()).map((one) => one.id)).toEqual([record.id]);
  });

  it("outlive the sandbox, unless it was never made", async () => {
    for (const freesKey of [false, true]) {
      const record = await insertKeyed({ key: `${freesKey}` });
      const operation = await db.operations.ofSandbox(record.id);
      expect(await db.sandboxes.remove(record, { end: operation ?? anOperation(), freesKey })).toBe(true);
      expect((await db.idempotencyKeys.find("team-a", `${freesKey}`, nowMs)) === undefined).toBe(freesKey);
    }
  });

  it("end with their time, and may then be used anew", async () => {
    const first = await insertKeyed({ expiresAtMs: nowMs });
    expect(await db.idempotencyKeys.find("team-a", "k", nowMs)).toBeUndefined();
    const second = await insertKeyed();
    expect(second.id).not.toBe(first.id);
    await db.idempotencyKeys.sweep(nowMs + 99);
    expect((await db.idempotencyKeys.find("team-a", "k", 0))?.sandboxIds).toEqual([second.id]);
    await db.idempotencyKeys.sweep(nowMs + 100);
    expect(await db.idempotencyKeys.find("team-a", "k", 0)).toBeUndefined();
  });
});
