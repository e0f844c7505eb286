/** What of storage counts, on every database. Time that has passed is written into the rows: no test waits. */
import type { Database } from "@cloche/gateway";
import { newCheckpointId, newSandboxId } from "@cloche/protocol";
import { randomBytes } from "node:crypto";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

const pack = (id: string, bytes = 10) => ({ id: `pack-${id}`, bytes });
const idsOf = (packs: { id: string }[]): string[] => packs.map(({ id }) => id).toSorted();

describe.each(databaseKinds)("on $name", (kind) => {
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    db = await kind.open(await kind.newPlace());
    for (const id of ["team-a", "team-b"]) await db.teams.insert({ id, name: id, createdAtMs: nowMs });
  });
  afterEach(() => db.close());

  const hold = (
    name: string,
    packs: { inherited?: string[]; own?: string[] } = {},
    { hostId = "host-1", holdMs = 60_000, isShared = false } = {},
  ) => {
    const inherited = (packs.inherited ?? []).map((id) => pack(id));
    const own = (packs.own ?? []).map((id) => pack(id));
    return db.storedNames.hold(hostId, { name, isShared, inherited, own }, holdMs);
  };
  const garbage = async (): Promise<string[]> => (await db.storageSweep.garbage(100, -1_000)).toSorted();
  let second = 0;
  const checkpoint = (id: string, packs: string[], fields: { teamId?: string; sandboxId?: string } = {}) => ({
    id,
    teamId: "team-a",
    sandboxId: "sbx-1",
    createdAt: `2026-01-01T00:00:${String((second += 1) % 60).padStart(2, "0")}.000Z`,
    sizeBytes: 100,
    header: JSON.stringify({ id }),
    packs: packs.map((one) => pack(one)),
    ...fields,
  });
  const named = async (packs: string[], inherited: string[] = [], fields: object = {}): Promise<string> => {
    const id = newCheckpointId(randomBytes);
    await hold(`checkpoints/${id}`, { inherited });
    await db.storedNames.nameCheckpoint("host-1", checkpoint(id, packs, fields));
    return id;
  };
  const unnamed = (...ids: string[]) => db.storageSweep.unnamed(ids.map((id) => `packs/pack-${id}`));
  const drop = (id: string, teamId = "team-a") => db.storedNames.dropCheckpoint(teamId, id);
  const ofTeam = async (query: object) => {
    const all = await db.storedNames.checkpoints({ teamId: "team-a", limit: 100, ...query });
    return all.map(({ id }) => id);
  };

  describe("a checkpoint", () => {
    it("is found, listed and counted once it is named, by its own team", async () => {
      const id = newCheckpointId(randomBytes);
      await hold(`checkpoints/${id}`);
      expect(await db.storedNames.checkpoint("team-a", id)).toBeUndefined();
      const wanted = checkpoint(id, ["p", "q"]);
      await db.storedNames.nameCheckpoint("host-1", wanted);
      await db.storedNames.nameCheckpoint("host-1", wanted);
      expect(await db.storedNames.checkpoint("team-a", id)).toEqual(wanted);
      expect(await db.storedNames.checkpoint("team-b", id)).toBeUndefined();
      expect(await db.storedNames.checkpoints({ teamId: "team-b", limit: 9 })).toEqual([]);
      expect(await db.storedNames.totals("team-a")).toEqual({ count: 1, bytes: 100 });
      expect(await db.storedNames.totals("team-b")).toEqual({ count: 0, bytes: 0 });
    });

    it("is listed newest first, in pages, of one sandbox too", async () => {
      const ids: string[] = [];
      for (let n = 0; n < 5; n += 1) ids.unshift(await named(["p"]));
      const other = await named(["p"], [], { sandboxId: "sbx-2" });
      expect(await ofTeam({})).toEqual([other, ...ids]);
      expect(await ofTeam({ sandboxId: "sbx-1", limit: 2 })).toEqual(ids.slice(0, 2));
      const [, last] = await db.storedNames.checkpoints({ teamId: "team-a", sandboxId: "sbx-1", limit: 2 });
      const after = { created_at: last?.createdAt ?? "", id: last?.id ?? "" };
      expect(await ofTeam({ sandboxId: "sbx-1", after })).toEqual(ids.slice(2));
    });

    it("is named by the host that holds it alone, and for a team's own sandbox", async () => {
      const id = newCheckpointId(randomBytes);
      const name = (host: string, fields = {}) =>
        db.storedNames.nameCheckpoint(host, checkpoint(id, ["p"], fields));
      await expect(name("host-1")).rejects.toMatchObject({ code: "failed_precondition" });
      await hold(`checkpoints/${id}`);
      await expect(name("host-2")).rejects.toMatchObject({ code: "failed_precondition" });
      await expect(hold(`checkpoints/${id}`, {}, { hostId: "host-2" })).rejects.toMatchObject({
        code: "permission_denied",
      });
      const sandbox = aSandbox({ id: newSandboxId(randomBytes), teamId: "team-b" });
      await db.sandboxes.insert([rowOf(sandbox)]);
      for (const fields of [{ teamId: "team-none" }, { sandboxId: sandbox.id }])
        await expect(name("host-1", fields)).rejects.toMatchObject({ code: "permission_denied" });
      expect(await unnamed("p")).toEqual(["packs/pack-p"]);
      await name("host-1");
      await expect(name("host-1", { teamId: "team-b" })).rejects.toMatchObject({ code: "permission_denied" });
    });

    it("that was dropped while it was named again stays dropped", async () => {
      const id = await named(["p"]);
      expect(await drop(id)).toBe(10);
      await expect(db.storedNames.nameCheckpoint("host-1", checkpoint(id, ["p"]))).rejects.toMatchObject({
        code: "failed_precondition",
      });
    });
  });

  describe("a pack", () => {
    it("stays as long as anything names it, and is garbage then", async () => {
      const first = await named(["p", "q"]);
      const next = await named(["q", "r"], ["p", "q"]);
      expect(await drop(first, "team-b")).toBeUndefined();
      expect(await drop(first)).toBe(10);
      expect(await drop(first)).toBeUndefined();
      expect(await unnamed("p", "q", "r")).toEqual(["packs/pack-p"]);
      expect(await drop(next)).toBe(20);
      const keys = await garbage();
      expect(keys).toEqual(
        [
          `checkpoints/${first}`,
          `checkpoints/${next}`,
          "packs/pack-p",
          "packs/pack-q",
          "packs/pack-r",
        ].toSorted(),
      );
      await db.storageSweep.swept(keys, false);
      expect(await garbage()).toEqual([]);
    });

    it("that nobody names can never be inherited", async () => {
      const first = await named(["p"]);
      await drop(first);
      const late = hold(`checkpoints/${newCheckpointId(randomBytes)}`, { inherited: ["p"] });
      await expect(late).rejects.toMatchObject({ code: "failed_precondition" });
      await expect(late).rejects.toThrow("pack-p");
    });

    it("is kept by a hold, whatever becomes of the checkpoint that it is inherited from", async () => {
      const first = await named(["p"]);
      const id = newCheckpointId(randomBytes);
      await hold(`checkpoints/${id}`, { inherited: ["p"] });
      await drop(first);
      expect(await unnamed("p")).toEqual([]);
      await db.storedNames.release("host-2", `checkpoints/${id}`);
      expect(await unnamed("p")).toEqual([]);
      await db.storedNames.release("host-1", `checkpoints/${id}`);
      expect(await unnamed("p")).toEqual(["packs/pack-p"]);
    });

    it("of a template that is stored anew is garbage, unless a checkpoint has inherited it", async () => {
      const template = { isShared: true };
      await hold("checkpoints/template-t-1", { own: ["s", "t"] }, template);
      await named(["s"], ["s", "t"]);
      await hold("checkpoints/template-t-1", { own: ["u"] }, { ...template, hostId: "host-2" });
      expect(await unnamed("s", "t", "u")).toEqual(["packs/pack-t"]);
    });

    it("of a hold that was left alone for too long is garbage", async () => {
      const id = newCheckpointId(randomBytes);
      await hold(`checkpoints/${id}`, { own: ["p"] });
      await hold("checkpoints/template-t-1", { own: ["t"] }, { isShared: true });
      await hold("checkpoints/template-t-1", { own: ["t"] }, { isShared: true, hostId: "host-2" });
      expect(await db.storageSweep.endHolds(10)).toBe(0);
      await hold(`checkpoints/${id}`, {}, { holdMs: -1 });
      await expect(db.storedNames.nameCheckpoint("host-1", checkpoint(id, ["p"]))).rejects.toMatchObject({
        code: "failed_precondition",
      });
      expect(await db.storageSweep.endHolds(10)).toBe(1);
      expect(await unnamed("p", "t")).toEqual(["packs/pack-p"]);
    });
  });

  describe("the image of a sandbox", () => {
    it("is named with its record, and dropped when the sandbox goes on or is deleted", async () => {
      const sandbox = aSandbox({ id: newSandboxId(randomBytes), state: "SANDBOX_STATE_SUSPENDED" });
      await db.sandboxes.insert([rowOf(sandbox)]);
      await named(["t"]);
      await hold("images/k1", { inherited: ["t"], own: ["p"] });
      const image = JSON.stringify({ key: "k1", packs: [pack("p"), pack("t")] });
      const read = (await db.sandboxes.get(sandbox.id)) ?? sandbox;
      expect(await db.sandboxes.change(read, { image }, nowMs)).toBeTruthy();
      expect(await db.sandboxes.imagePacks(sandbox.id)).toEqual(["pack-p", "pack-t"]);
      expect(await db.storageSweep.unnamed(["images/k1/image", "images/k2/image"])).toEqual([
        "images/k2/image",
      ]);
      const now = (await db.sandboxes.get(sandbox.id)) ?? sandbox;
      await db.sandboxes.change(now, { image: "" }, nowMs);
      expect(await unnamed("p", "t")).toEqual(["packs/pack-p"]);
      expect(await garbage()).toEqual(["images/k1/", "packs/pack-p"]);
    });
  });

  describe("the sweep", () => {
    it("is one host's at a time, by the database's clock, and lists the store once a day", async () => {
      const claim = (host: string, leaseMs = 60_000) =>
        db.storageSweep.claim(host, { leaseMs, listEveryMs: 60_000 });
      expect(await claim("host-1")).toEqual({ isListDue: true });
      expect(await claim("host-2")).toBeUndefined();
      await db.storageSweep.swept([], true);
      expect(await claim("host-1", -1)).toEqual({ isListDue: false });
      expect(await claim("host-2")).toEqual({ isListDue: false });
      expect(await claim("host-1")).toBeUndefined();
    });

    it("finds nothing unnamed that it does not know", async () => {
      const keys = ["installation.json", "owner", "packs/a/b", "images/a", "checkpoints/a/b", ""];
      expect(await db.storageSweep.unnamed(keys)).toEqual([]);
    });

    it("leaves a reader of what was dropped an hour", async () => {
      await drop(await named(["p"]));
      expect(await db.storageSweep.garbage(10, 3_600_000)).toEqual([]);
      expect(await garbage()).toHaveLength(2);
    });
  });

  it("of many holds and drops at once nothing that is held becomes garbage", {
    timeout: 60_000,
  }, async () => {
    for (let round = 0; round < 20; round += 1) {
      const base = await named([`b${round}`, `c${round}`]);
      const ids = Array.from({ length: 6 }, () => newCheckpointId(randomBytes));
      const inherited = [`b${round}`, `c${round}`];
      const results = await Promise.allSettled([
        ...ids.map((id) => hold(`checkpoints/${id}`, { inherited })),
        drop(base),
      ]);
      const held = ids.filter((_, index) => results[index]?.status === "fulfilled");
      for (const result of results)
        if (result.status === "rejected")
          expect(result.reason).toMatchObject({ code: "failed_precondition" });
      expect(await unnamed(...inherited)).toEqual(
        held.length > 0 ? [] : inherited.map((id) => `packs/pack-${id}`),
      );
      const gone = await garbage();
      if (held.length > 0) for (const id of inherited) expect(gone).not.toContain(`packs/pack-${id}`);
      for (const id of held) {
        await db.storedNames.nameCheckpoint("host-1", checkpoint(id, inherited));
        expect(idsOf((await db.storedNames.checkpoint("team-a", id))?.packs ?? [])).toEqual(
          inherited.map((one) => `pack-${one}`),
        );
      }
    }
  });
});
