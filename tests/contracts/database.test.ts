/** One suite for every database the gateway can run on: what it asks of a database holds on each, or the test names it. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { type Database, openPostgres, openSqlite } from "@cloche/gateway";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { anAuditEntry, anOperation, aSandbox } from "../../packages/gateway/src/testing/database-records.ts";
import { startPostgres } from "../fixtures/postgres.ts";
import { clock, databaseKinds, nowMs, rowOf } from "./database-kinds.ts";

describe.each(databaseKinds)("database contract on $name", (kind) => {
  let place: string;
  let db: Database;
  beforeAll(() => kind.setUp());
  afterAll(() => kind.tearDown());
  beforeEach(async () => {
    place = await kind.newPlace();
    db = await kind.open(place);
    await db.teams.insert({ id: "team-a", name: "A", createdAtMs: nowMs });
    await db.teams.insert({ id: "team-b", name: "B", createdAtMs: nowMs + 1 });
  });
  afterEach(() => db.close());

  const insert = async (changes: Parameters<typeof aSandbox>[0]) => {
    const record = aSandbox({ teamId: "team-a", ...changes });
    await db.sandboxes.insert([rowOf(record)]);
    return record;
  };

  describe("schema", () => {
    it("is made once, and kept by the next start", async () => {
      await db.close();
      db = await kind.open(place);
      expect((await db.teams.all()).map((one) => one.id)).toEqual(["team-a", "team-b"]);
    });

    it("is made once by several starts at the same time", async () => {
      if (kind.name === "SQLite") await db.close();
      const fresh = await kind.newPlace();
      const opened = await Promise.all([kind.open(fresh), kind.open(fresh), kind.open(fresh)]);
      await Promise.all(opened.map((one) => one.close()));
      if (kind.name === "SQLite") db = await kind.open(place);
    });
  });

  describe("teams", () => {
    it("gets one, or undefined", async () => {
      expect(await db.teams.get("team-a")).toEqual({ id: "team-a", name: "A", createdAtMs: nowMs });
      expect(await db.teams.get("team-x")).toBeUndefined();
    });
  });

  describe("usage", () => {
    const run = async (from: number, to: number, changes: object = {}) => {
      const record = await insert({ cpus: 0.5, memoryMb: 100, ...changes });
      const running = await db.sandboxes.change(record, { state: "SANDBOX_STATE_RUNNING" }, nowMs + from);
      if (running === undefined) throw new Error("it could not be changed");
      const ended = { state: "SANDBOX_STATE_SUSPENDING" } as const;
      if (to !== Infinity) await db.sandboxes.change(running, ended, nowMs + to);
      return running;
    };
    const query = (from: number, to: number, teamId = "team-a") => ({
      teamId,
      fromMs: nowMs + from,
      toMs: nowMs + to,
    });

    it("is the time in RUNNING, cut to the range, by sandbox and for the team", async () => {
      const a = await run(10, 30);
      const b = await run(20, Infinity);
      await run(0, 100, { teamId: "team-b" });
      const [first, second] = [a, b].toSorted((x, y) => (x.id < y.id ? -1 : 1));
      const page = await db.usage.list(query(0, 50), { afterSandboxId: "", limit: 1 });
      expect(page.map(({ sandboxId }) => sandboxId)).toEqual([first?.id]);
      const rest = await db.usage.list(query(0, 50), { afterSandboxId: first?.id ?? "", limit: 9 });
      expect(rest.map(({ sandboxId }) => sandboxId)).toEqual([second?.id]);
      const ofA = [...page, ...rest].find(({ sandboxId }) => sandboxId === a.id);
      expect(ofA).toEqual({
        sandboxId: a.id,
        name: "name",
        createdBy: "key-1",
        computeMs: 20,
        cpuMs: 10,
        memoryMbMs: 2_000,
        firstMs: nowMs + 10,
        lastMs: nowMs + 30,
      });
      expect(await db.usage.totalMs(query(0, 50))).toBe(50);
      expect(await db.usage.totalMs(query(25, 40))).toBe(20);
      expect(await db.usage.totalMs({ ...query(25, 40), sandboxId: b.id })).toBe(15);
      expect(await db.usage.totalMs(query(200, 300, "team-b"))).toBe(0);
      expect([await db.usage.hasAny("team-a", a.id), await db.usage.hasAny("team-b", a.id)]).toEqual([
        true,
        false,
      ]);
    });

    it("ends where the machine was last seen, and begins anew with it", async () => {
      const record = await run(0, Infinity);
      await db.usage.seen([record.id, "sbx-none"], nowMs + 40);
      await db.usage.seen([record.id], nowMs + 30);
      await db.usage.startedAnew(record.id, nowMs + 100);
      await db.usage.startedAnew(record.id, nowMs + 90);
      expect(await db.usage.totalMs(query(0, 110))).toBe(50);
      expect(await db.usage.open([record.id])).toEqual([{ sandboxId: record.id, startedAtMs: nowMs + 100 }]);
      await db.usage.seen([record.id], nowMs + 105);
      await db.sandboxes.change(record, { state: "SANDBOX_STATE_ERROR" }, nowMs + 500, {
        ranUntilSeen: true,
      });
      expect(await db.usage.totalMs(query(0, 900))).toBe(45);
      expect(await db.usage.open([record.id])).toEqual([]);
      await db.usage.prune(nowMs + 50);
      expect(await db.usage.totalMs(query(0, 900))).toBe(5);
    });

    it("is not written by a change that lost its race", async () => {
      const record = await run(0, 10);
      expect(await db.sandboxes.change(record, { state: "SANDBOX_STATE_ERROR" }, nowMs + 70)).toBeUndefined();
      expect(await db.usage.totalMs(query(0, 900))).toBe(10);
    });
  });

  describe("sandboxes", () => {
    it("of a team are as many as it may have, those being deleted left out, whoever is first", async () => {
      const most = 5;
      const make = () => {
        const record = aSandbox();
        return db.sandboxes.insert([rowOf(record)], { ofTeamMax: most }).then(() => record);
      };
      const tries = await Promise.allSettled(Array.from({ length: 12 }, make));
      const made = tries.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
      expect(made).toHaveLength(most);
      await expect(make()).rejects.toThrow("the team has 5 sandboxes; at most 5 are allowed");
      const [refused, deleted] = made;
      if (refused === undefined || deleted === undefined) throw new Error("nothing was made");
      const operation = await db.operations.ofSandbox(refused.id);
      if (operation === undefined) throw new Error("it has no operation");
      await db.sandboxes.remove(refused, { end: operation });
      await make();
      const begin = anOperation({ sandboxId: deleted.id, kind: "delete" });
      const going = await db.sandboxes.change(deleted, { state: "SANDBOX_STATE_DELETING" }, nowMs, { begin });
      await make();
      await db.sandboxes.remove(going ?? deleted, { end: begin });
      await expect(make()).rejects.toMatchObject({ code: "resource_exhausted" });
    });

    it("are read in pages, by id", async () => {
      const ids = [];
      for (let index = 0; index < 5; index += 1) ids.push((await insert({})).id);
      const pages: string[][] = [];
      for (let after = ""; pages.at(-1)?.length !== 0; after = pages.at(-1)?.at(-1) ?? "")
        pages.push((await db.sandboxes.page(after, 2)).map(({ id }) => id));
      expect(pages.map((page) => page.length)).toEqual([2, 2, 1, 0]);
      expect(pages.flat()).toEqual(ids.toSorted());
    });

    it("come back as they were written, whatever characters they hold", async () => {
      const text = `"quotes" 'single' \\ %_ ; -- \u{1f514} 日本`;
      const record = await insert({
        name: text,
        metadata: { [text]: text, empty: "" },
        env: { A: text },
        publicPorts: [1, 65_535],
        cpus: 0.1,
        expiresAtMs: nowMs + 31_536_000_000,
        autoResume: true,
        firstRanAtMs: nowMs,
      });
      expect(await db.sandboxes.get(record.id)).toEqual(record);
      expect(await db.sandboxes.list({ teamId: "team-a", states: [], metadata: { [text]: text } })).toEqual([
        record,
      ]);
      expect(await db.sandboxes.get("sbx-none")).toBeUndefined();
    });

    it("are refused twice under one id, together with all that came along", async () => {
      const record = await insert({});
      const again = anOperation({ sandboxId: record.id });
      await expect(
        db.sandboxes.insert([{ record, begin: again, audit: anAuditEntry({ subject: "second" }) }]),
      ).rejects.toThrow();
      expect(await db.audit.list({ teamId: "team-a", subject: "second", limit: 10 })).toEqual([]);
    });

    it("list newest first, by team, states, metadata, ordinal and limit", async () => {
      const a = await insert({ ordinal: 1, metadata: { k: "1", l: "1" } });
      const b = await insert({ ordinal: 2, metadata: { k: "1" }, state: "SANDBOX_STATE_RUNNING" });
      const c = await insert({ ordinal: 1_767_225_600_000_001, metadata: { k: "2" } });
      await insert({ ordinal: 3, teamId: "team-b" });
      const list = async (query: object) => {
        const found = await db.sandboxes.list({ teamId: "team-a", states: [], metadata: {}, ...query });
        return found.map((one) => one.id);
      };
      expect(await list({})).toEqual([c.id, b.id, a.id]);
      expect(await list({ limit: 2 })).toEqual([c.id, b.id]);
      expect(await list({ after: { ordinal: 2, name: "" } })).toEqual([a.id]);
      expect(await list({ states: ["SANDBOX_STATE_RUNNING"] })).toEqual([b.id]);
      expect(await list({ states: ["SANDBOX_STATE_RUNNING", "SANDBOX_STATE_CREATING"] })).toEqual([
        c.id,
        b.id,
        a.id,
      ]);
      expect(await list({ metadata: { k: "1" } })).toEqual([b.id, a.id]);
      expect(await list({ metadata: { k: "1", l: "1" } })).toEqual([a.id]);
      expect(await list({ teamId: "team-x" })).toEqual([]);
      expect((await db.sandboxes.all()).length).toBe(4);
      expect(await db.sandboxes.lastOrdinal()).toBe(1_767_225_600_000_001);
    });

    it("list by name in the order of bytes, from any place, by prefix", async () => {
      const names = ["b", "a", "é", "A", "a_", "a", "a%", "\u{1f514}", "\uffee"];
      const made: { id: string; name: string; ordinal: number }[] = [];
      for (const [index, name] of names.entries()) made.push(await insert({ name, ordinal: index + 1 }));
      const sorted = made.toSorted(
        (x, y) => Buffer.compare(Buffer.from(x.name), Buffer.from(y.name)) || x.ordinal - y.ordinal,
      );
      for (const isDescending of [false, true]) {
        const order = { by: "name", isDescending } as const;
        const wanted = isDescending ? sorted.toReversed() : sorted;
        const list = async (query: object) => {
          const all = await db.sandboxes.list({
            teamId: "team-a",
            states: [],
            metadata: {},
            order,
            ...query,
          });
          return all.map(({ id }) => id);
        };
        expect(await list({})).toEqual(wanted.map(({ id }) => id));
        for (const [index, after] of wanted.entries())
          expect(await list({ after })).toEqual(wanted.slice(index + 1).map(({ id }) => id));
        for (const namePrefix of ["a", "a%", "a_", "\u{1f514}", "\uffee", "\u{10ffff}", "x"]) {
          const those = wanted.filter(({ name }) => name.startsWith(namePrefix));
          expect(await list({ namePrefix })).toEqual(those.map(({ id }) => id));
        }
      }
      const oldest = { by: "created_at", isDescending: false } as const;
      const byAge = await db.sandboxes.list({ teamId: "team-a", states: [], metadata: {}, order: oldest });
      expect(byAge.map(({ id }) => id)).toEqual(made.map(({ id }) => id));
    });

    it("change only from the state and generation that were read", async () => {
      const read = await insert({});
      const changed = await db.sandboxes.change(
        read,
        { state: "SANDBOX_STATE_RUNNING", autoResume: true },
        nowMs + 5,
      );
      expect(changed).toEqual({
        ...read,
        state: "SANDBOX_STATE_RUNNING",
        autoResume: true,
        generation: 2,
        updatedAtMs: nowMs + 5,
      });
      expect(await db.sandboxes.get(read.id)).toEqual(changed);
      expect(await db.sandboxes.change(read, { name: "stale" }, nowMs)).toBeUndefined();
      expect(await db.sandboxes.get(read.id)).toEqual(changed);
    });

    it("let exactly one of many writers through", async () => {
      const read = await insert({});
      const names = Array.from({ length: 20 }, (_, i) => `writer ${i}`);
      const results = await Promise.all(names.map((name) => db.sandboxes.change(read, { name }, nowMs)));
      expect(results.filter((one) => one !== undefined)).toHaveLength(1);
      expect((await db.sandboxes.get(read.id))?.generation).toBe(2);
    });

    it("change with their operation and audit entry, all or nothing", async () => {
      const read = await insert({});
      const first = await db.operations.ofSandbox(read.id);
      const next = anOperation({ sandboxId: read.id, kind: "delete" });
      const begun = await db.sandboxes.change(read, { state: "SANDBOX_STATE_DELETING" }, nowMs, {
        begin: next,
        audit: anAuditEntry({ subject: "begun" }),
      });
      expect(await db.operations.ofSandbox(read.id)).toEqual(next);
      if (begun === undefined || first === undefined) throw new Error("not written");
      const stale = await db.sandboxes.change(begun, { name: "x" }, nowMs, {
        end: first,
        audit: anAuditEntry({ subject: "stale" }),
      });
      expect(stale).toBeUndefined();
      expect(await db.sandboxes.get(read.id)).toEqual(begun);
      expect(await db.audit.list({ teamId: "team-a", subject: "stale", limit: 1 })).toEqual([]);
      expect(await db.audit.list({ teamId: "team-a", subject: "begun", limit: 1 })).toHaveLength(1);
      expect(await db.sandboxes.change(begun, {}, nowMs, { end: next })).toBeDefined();
      expect(await db.operations.ofSandbox(read.id)).toBeUndefined();
    });

    it("are removed with what belongs to them, by the operation's owner only", async () => {
      const read = await insert({ metadata: { k: "v" } });
      const operation = await db.operations.ofSandbox(read.id);
      await db.portLinks.insert(
        "hash",
        { sandboxId: read.id, teamId: "team-a", port: 1, expiresAtMs: nowMs + 1 },
        nowMs,
      );
      expect(await db.sandboxes.remove(read, { end: { id: "op-other", attempt: 1 } })).toBe(false);
      const stale = { ...read, generation: 7 };
      expect(await db.sandboxes.remove(stale, { end: operation ?? anOperation() })).toBe(false);
      expect(await db.operations.ofSandbox(read.id)).toEqual(operation);
      expect(await db.sandboxes.remove(read, { end: operation ?? anOperation() })).toBe(true);
      expect(await db.sandboxes.get(read.id)).toBeUndefined();
      expect(await db.operations.all()).toEqual([]);
      expect(await db.portLinks.take("hash")).toBeUndefined();
    });

    it("replace metadata whole", async () => {
      const read = await insert({ metadata: { old: "1", same: "1" } });
      await db.sandboxes.change(read, { metadata: { same: "2" } }, nowMs);
      const find = (metadata: Record<string, string>) =>
        db.sandboxes.list({ teamId: "team-a", states: [], metadata });
      expect(await find({ old: "1" })).toEqual([]);
      expect(await find({ same: "1" })).toEqual([]);
      expect(await find({ same: "2" })).toHaveLength(1);
    });

    it("tell which are due", async () => {
      const late = await insert({ expiresAtMs: nowMs + 20 });
      const soon = await insert({ expiresAtMs: nowMs + 10 });
      await insert({ expiresAtMs: nowMs + 5, state: "SANDBOX_STATE_DELETING" });
      await insert({});
      expect(await db.sandboxes.nextExpiryMs()).toBe(nowMs + 10);
      const idsAt = async (atMs: number, limit = 10) =>
        (await db.sandboxes.expired(atMs, limit)).map((one) => one.id);
      expect(await idsAt(nowMs + 9)).toEqual([]);
      expect(await idsAt(nowMs + 20)).toEqual([soon.id, late.id]);
      expect(await idsAt(nowMs + 20, 1)).toEqual([soon.id]);
      // One that is to be suspended has to wait for a state in which it can be.
      const busy = { expiresAtMs: nowMs + 3, onTimeout: "suspend" } as const;
      const waits = await insert({ ...busy, state: "SANDBOX_STATE_RESUMING" });
      expect(await db.sandboxes.nextExpiryMs()).toBe(nowMs + 10);
      await db.sandboxes.change(waits, { state: "SANDBOX_STATE_RUNNING" }, nowMs);
      expect(await db.sandboxes.nextExpiryMs()).toBe(nowMs + 3);
      expect(await idsAt(nowMs + 9)).toEqual([waits.id]);
    });
  });

  describe("operations", () => {
    it("keep their progress, and refuse to once replaced", async () => {
      const record = await insert({});
      const operation = await db.operations.ofSandbox(record.id);
      if (operation === undefined) throw new Error("no operation");
      Object.assign(operation, {
        direction: "back",
        input: { diskOnly: true },
        failure: "it broke",
      });
      expect(await db.operations.save(operation, nowMs + 9)).toBe(true);
      expect(await db.operations.all()).toEqual([{ ...operation, updatedAtMs: nowMs + 9 }]);
      expect(await db.operations.save({ ...operation, id: "op-other" }, nowMs)).toBe(false);
    });
  });

  describe("API keys", () => {
    const key = (id: string, changes: object = {}) => ({
      id,
      teamId: "team-a",
      name: "n",
      prefix: "cloche_abc",
      createdAtMs: nowMs,
      expiresAtMs: null,
      revokedAtMs: null,
      lastUsedAtMs: null,
      ...changes,
    });

    it("are found by hash, listed newest first, touched, revoked once", async () => {
      await db.apiKeys.insert(key("key-1"), "h1", anAuditEntry({}));
      await db.apiKeys.insert(
        key("key-2", { createdAtMs: nowMs + 1, expiresAtMs: nowMs + 2 }),
        "h2",
        anAuditEntry({}),
      );
      await expect(db.apiKeys.insert(key("key-3"), "h1", anAuditEntry({}))).rejects.toThrow();
      expect(await db.apiKeys.findByHash("h1")).toEqual(key("key-1"));
      expect(await db.apiKeys.findByHash("h9")).toBeUndefined();
      const [newest] = await db.apiKeys.list("team-a", { limit: 1 });
      expect(newest?.id).toBe("key-2");
      const after = { createdAtMs: newest?.createdAtMs ?? 0, id: "key-2" };
      expect((await db.apiKeys.list("team-a", { limit: 9, after })).map((one) => one.id)).toEqual(["key-1"]);
      expect((await db.apiKeys.list("team-a", { limit: 10 })).map((one) => one.id)).toEqual([
        "key-2",
        "key-1",
      ]);
      await db.apiKeys.touch("key-1", nowMs + 7);
      expect((await db.apiKeys.findByHash("h1"))?.lastUsedAtMs).toBe(nowMs + 7);
      expect(await db.apiKeys.revoke("team-b", "key-1", nowMs, anAuditEntry({}))).toBe(false);
      expect(await db.apiKeys.revoke("team-a", "key-1", nowMs + 8, anAuditEntry({ subject: "key-1" }))).toBe(
        true,
      );
      expect(await db.apiKeys.revoke("team-a", "key-1", nowMs + 9, anAuditEntry({ subject: "key-1" }))).toBe(
        true,
      );
      expect((await db.apiKeys.findByHash("h1"))?.revokedAtMs).toBe(nowMs + 8);
      expect(await db.audit.list({ teamId: "team-a", subject: "key-1", limit: 9 })).toHaveLength(1);
      expect((await db.apiKeys.list("team-a", { limit: 10 })).map((one) => one.id)).toEqual(["key-2"]);
    });
  });

  describe("port links", () => {
    it("are taken by one of many, and drop out when expired", async () => {
      const { id: sandboxId } = await insert({});
      const link = { sandboxId, teamId: "team-a", port: 80, expiresAtMs: nowMs + 10 };
      await db.portLinks.insert("h1", link, nowMs);
      expect([await db.portLinks.find("h1"), await db.portLinks.find("h0")]).toEqual([link, undefined]);
      const taken = await Promise.all(Array.from({ length: 10 }, () => db.portLinks.take("h1")));
      expect(taken.filter((one) => one !== undefined)).toEqual([link]);
      await db.portLinks.insert("h2", link, nowMs);
      await db.portLinks.insert("h3", { ...link, expiresAtMs: nowMs + 30 }, nowMs + 20);
      expect(await db.portLinks.take("h2")).toBeUndefined();
    });
  });

  describe("file links", () => {
    it("have one secret, whoever asks first, and a file link for one use is used by one of many", async () => {
      const made = await Promise.all([1, 2, 3].map((byte) => db.fileLinks.secret(Buffer.alloc(32, byte))));
      expect(new Set(made.map((secret) => Buffer.from(secret).toString("hex"))).size).toBe(1);
      const link = { id: "link-1", sandboxId: (await insert({})).id, expiresAtMs: nowMs + 10 };
      const used = await Promise.all([1, 2, 3, 4].map(() => db.fileLinks.use(link, nowMs)));
      expect(used.filter(Boolean)).toHaveLength(1);
    });
  });

  describe("audit", () => {
    it("lists newest first and drops by age and by count", async () => {
      for (let i = 0; i < 6; i += 1) {
        await db.audit.insert(anAuditEntry({ id: `aud-${i}`, atMs: nowMs + i, subject: `s${i % 2}` }));
      }
      const idsOf = async (query: object = {}) =>
        (await db.audit.list({ teamId: "team-a", limit: 10, ...query })).map((one) => one.id);
      expect(await idsOf({ limit: 2 })).toEqual(["aud-5", "aud-4"]);
      expect(await idsOf({ subject: "s0" })).toEqual(["aud-4", "aud-2", "aud-0"]);
      expect(await idsOf({ beforeId: "aud-2" })).toEqual(["aud-1", "aud-0"]);
      expect(await idsOf({ teamId: "team-b" })).toEqual([]);
      expect(await db.audit.prune(nowMs + 2, 100)).toBe(2);
      expect(await idsOf()).toEqual(["aud-5", "aud-4", "aud-3", "aud-2"]);
      expect(await db.audit.prune(0, 1)).toBe(3);
      expect(await idsOf()).toEqual(["aud-5"]);
    });

    it("keeps the newest of each team, however many another has", async () => {
      await db.audit.insert(anAuditEntry({ id: "aud-000", atMs: nowMs, teamId: "team-b" }));
      for (let i = 1; i < 9; i += 1) await db.audit.insert(anAuditEntry({ id: `aud-00${i}`, atMs: nowMs }));
      expect(await db.audit.prune(0, 3)).toBe(5);
      const idsOf = async (teamId: string) =>
        (await db.audit.list({ teamId, limit: 10 })).map((one) => one.id);
      expect(await idsOf("team-b")).toEqual(["aud-000"]);
      expect(await idsOf("team-a")).toEqual(["aud-008", "aud-007", "aud-006"]);
    });
  });

  it("goes on after a failed statement, and many things at once keep apart", async () => {
    const work = Array.from({ length: 50 }, async (_, i) => {
      if (i % 10 === 0)
        await db.teams.insert({ id: "team-a", name: "twice", createdAtMs: 0 }).catch(() => undefined);
      const record = await insert({ metadata: { i: String(i) } });
      const changed = await db.sandboxes.change(record, { name: `n${i}` }, nowMs);
      return changed?.name === `n${i}`;
    });
    expect((await Promise.all(work)).every(Boolean)).toBe(true);
    await db.ping();
  });
});

describe("PostgreSQL alone", () => {
  it("is unavailable while it is away, and comes back by itself", async () => {
    const own = await startPostgres();
    let isStopped = false;
    try {
      const db = await openPostgres(await own.newDatabase(), clock);
      await db.ping();
      await own.dropConnections();
      await expect
        .poll(() =>
          db.ping().then(
            () => "ok",
            (error: { code: string }) => error.code,
          ),
        )
        .toBe("ok");
      await own.stop();
      isStopped = true;
      await expect(db.sandboxes.all()).rejects.toMatchObject({
        code: "unavailable",
        message: "the service's database does not answer; try again",
      });
      await db.close();
    } finally {
      if (!isStopped) await own.stop();
    }
  });
});

describe("SQLite alone", () => {
  it("is readable by its owner only", async () => {
    const own = await mkdtemp(join(tmpdir(), "cloche-database-"));
    const db = await openSqlite(join(own, "x.db"), clock);
    try {
      for (const name of await readdir(own))
        expect([name, (await stat(join(own, name))).mode & 0o777]).toEqual([name, 0o600]);
    } finally {
      await db.close();
      await rm(own, { recursive: true });
    }
  });

  it("is unavailable while another process holds its lock for long", { timeout: 20_000 }, async () => {
    const own = await mkdtemp(join(tmpdir(), "cloche-database-"));
    const db = await openSqlite(join(own, "x.db"), clock);
    const other = new DatabaseSync(join(own, "x.db"));
    try {
      other.exec("begin exclusive");
      const team = { id: "team-x", name: "X", createdAtMs: 0 };
      await expect(db.teams.insert(team)).rejects.toMatchObject({ code: "unavailable" });
      other.exec("rollback");
      await db.teams.insert(team);
    } finally {
      other.close();
      await db.close();
      await rm(own, { recursive: true });
    }
  });

  it("keeps what was answered when the process is killed", async () => {
    const own = await mkdtemp(join(tmpdir(), "cloche-database-"));
    const file = join(own, "x.db");
    // Writes and tells each answer; the kill comes in the middle of the next.
    const program = `
      import { openSqlite } from "@cloche/gateway";
      const db = await openSqlite(process.argv[1], { nowMs: () => 0 });
      for (let i = 0; ; i += 1) {
        await db.teams.insert({ id: "team-" + i, name: "x", createdAtMs: i });
        process.stdout.write(i + "\\n");
      }`;
    try {
      const child = spawn(process.execPath, ["--input-type=module", "-e", program, file], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      let told = "";
      child.stdout.on("data", (chunk: Buffer) => {
        told += chunk.toString();
        if (told.split("\n").length > 50) child.kill("SIGKILL");
      });
      await once(child, "close");
      const answered = told.split("\n").slice(0, -1).length;
      expect(answered).toBeGreaterThan(49);
      const db = await openSqlite(file, clock);
      expect((await db.teams.all()).length).toBeGreaterThanOrEqual(answered);
      await db.close();
    } finally {
      await rm(own, { recursive: true });
    }
  });
});
