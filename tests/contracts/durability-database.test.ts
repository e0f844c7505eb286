/** On every database: images of suspended sandboxes in records, and checkpoints that are due. */
import type { Database } from "@cloche/gateway";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import type { OperationRecord } from "../../packages/gateway/src/database/operations.ts";
import type { SandboxPatch, SandboxRecord } from "../../packages/gateway/src/database/sandbox-record.ts";
import { aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

describe.each(databaseKinds)("durability on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace());
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
  });
  afterEach(() => db.close());

  const insert = async (changes: Parameters<typeof aSandbox>[0]) => {
    const record = aSandbox({ teamId: "team-a", ...changes });
    await db.sandboxes.insert([rowOf(record)]);
    return record;
  };

  describe("images of suspended sandboxes", () => {
    const image = (...ids: string[]): string =>
      JSON.stringify({ key: "k", packs: ids.map((id) => ({ id, bytes: 5_000_000_000 })) });
    const write = async (read: SandboxRecord, patch: SandboxPatch): Promise<SandboxRecord> => {
      const written = await db.sandboxes.change(read, patch, nowMs);
      if (written === undefined) throw new Error("the write was refused");
      return written;
    };

    it("name their packs for as long as the sandbox is to go on from them", async () => {
      const suspended = await insert({ state: "SANDBOX_STATE_SUSPENDED" });
      const durable = await write(suspended, { image: image("p1", "p2", "p2") });
      expect(await db.sandboxes.imagePacks(suspended.id)).toEqual(["p1", "p2"]);
      const renamed = await write(durable, { name: "other" });
      expect(renamed.image).toBe(durable.image);
      const resuming = await write(renamed, { state: "SANDBOX_STATE_RESUMING" });
      const fellBack = await write(resuming, { state: "SANDBOX_STATE_SUSPENDED" });
      const again = await write(fellBack, { state: "SANDBOX_STATE_RESUMING" });
      expect(await db.sandboxes.imagePacks(suspended.id)).toEqual(["p1", "p2"]);
      const running = await write(again, { state: "SANDBOX_STATE_RUNNING" });
      expect(running.image).toBe("");
      expect((await db.sandboxes.get(running.id))?.image).toBe("");
      expect(await db.sandboxes.imagePacks(suspended.id)).toEqual([]);
    });

    it("are gone with their sandbox", async () => {
      const suspended = await insert({ state: "SANDBOX_STATE_SUSPENDED" });
      const durable = await write(suspended, { image: image("p1") });
      const end = await db.operations.ofSandbox(durable.id);
      expect(await db.sandboxes.remove(durable, { end: end as OperationRecord })).toBe(true);
      expect(await db.sandboxes.imagePacks(durable.id)).toEqual([]);
    });
  });

  it("checkpoints are due while their sandbox runs, and are taken by one of many", async () => {
    const every = 60;
    const made = await insert({ checkpointEverySeconds: every });
    const due = async (atMs: number): Promise<string[]> =>
      (await db.sandboxes.checkpointsDue(atMs, 10)).map(({ id }) => id);
    expect(await due(nowMs + 1e9)).toEqual([]);
    const running = await db.sandboxes.change(made, { state: "SANDBOX_STATE_RUNNING" }, nowMs);
    expect(await due(nowMs + every * 1_000 - 1)).toEqual([]);
    const atMs = nowMs + every * 1_000;
    expect(await due(atMs)).toEqual([made.id]);
    const tries = Array.from({ length: 8 }, () => db.sandboxes.moveCheckpoint(made.id, atMs, atMs + 5));
    expect((await Promise.all(tries)).filter(Boolean)).toHaveLength(1);
    expect(await due(atMs + 4)).toEqual([]);
    // It is no change of the record.
    const suspending = { state: "SANDBOX_STATE_SUSPENDING" } as const;
    expect(await db.sandboxes.change(running as SandboxRecord, suspending, nowMs)).toBeDefined();
    expect(await due(nowMs + 1e9)).toEqual([]);
  });
});
