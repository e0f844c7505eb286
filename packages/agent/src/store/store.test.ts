import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Store, type StoreClock, type StoreWrite } from "./store.ts";

let folder: string;
let clock: StoreClock & { nowMs: number; due: { atMs: number; run: () => void }[] };
let store: Store;
const key = (text: string): Buffer => Buffer.from(text);
const put = (name: string, value: string, expiresAtMs: number | null = null): StoreWrite => ({
  op: "set",
  key: key(name),
  value: key(value),
  expiresAtMs,
});
const path = (): string => join(folder, "store.db");
const fresh = (): Store => new Store(path(), clock);

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "cloche-store-"));
  clock = {
    nowMs: 1_000_000,
    due: [],
    now: () => clock.nowMs,
    schedule: (then, delayMs) => {
      const entry = { atMs: clock.nowMs + delayMs, run: then };
      clock.due.push(entry);
      return () => {
        clock.due = clock.due.filter((other) => other !== entry);
      };
    },
  };
  store = fresh();
});
afterEach(() => {
  store.close();
  rmSync(folder, { recursive: true, force: true });
});

describe("Store", () => {
  it("behaves as a map, with random operations, expiries and restarts", async () => {
    const names = fc.constantFrom("a", "ab", "abc", "b", "b%", "b_", "é", "é/ü", "\0x", "Z");
    const operation = fc.oneof(
      {
        weight: 5,
        arbitrary: fc.record({
          do: fc.constant("set" as const),
          name: names,
          value: fc.json(),
          ttlMs: fc.option(fc.integer({ min: 1, max: 50 })),
        }),
      },
      { weight: 3, arbitrary: fc.record({ do: fc.constant("delete" as const), name: names }) },
      {
        weight: 2,
        arbitrary: fc.record({
          do: fc.constant("batch" as const),
          names: fc.array(names, { maxLength: 5 }),
          value: fc.json(),
        }),
      },
      {
        weight: 3,
        arbitrary: fc.record({
          do: fc.constant("list" as const),
          prefix: fc.constantFrom("", "a", "ab", "b_", "b%", "é"),
          page: fc.integer({ min: 1, max: 4 }),
        }),
      },
      {
        weight: 2,
        arbitrary: fc.record({ do: fc.constant("wait" as const), ms: fc.integer({ min: 1, max: 30 }) }),
      },
      { weight: 1, arbitrary: fc.record({ do: fc.constant("restart" as const) }) },
      { weight: 1, arbitrary: fc.record({ do: fc.constant("sweep" as const) }) },
    );
    await fc.assert(
      fc.asyncProperty(fc.array(operation, { maxLength: 60 }), async (operations) => {
        store.close();
        store.ready();
        for (const suffix of ["", "-wal"]) rmSync(path() + suffix, { force: true });
        const model = new Map<string, { value: string; expiresAtMs: number | null }>();
        const alive = (name: string): boolean => {
          const entry = model.get(name);
          return entry !== undefined && (entry.expiresAtMs === null || entry.expiresAtMs > clock.nowMs);
        };
        for (const step of operations) {
          if (step.do === "set") {
            const expiresAtMs = step.ttlMs === null ? null : clock.nowMs + step.ttlMs;
            await store.apply([put(step.name, step.value, expiresAtMs)]);
            model.set(step.name, { value: step.value, expiresAtMs });
          } else if (step.do === "delete") {
            const [deleted] = await store.apply([{ op: "delete", key: key(step.name) }]);
            expect(deleted).toBe(alive(step.name));
            model.delete(step.name);
          } else if (step.do === "batch") {
            await store.apply(step.names.map((name) => put(name, step.value)));
            for (const name of step.names) model.set(name, { value: step.value, expiresAtMs: null });
          } else if (step.do === "list") {
            const expected = [...model.keys()].filter((name) => alive(name) && name.startsWith(step.prefix));
            expected.sort((one, other) => key(one).compare(key(other)));
            const listed: string[] = [];
            let cursor: Buffer | undefined;
            for (let more = true; more; ) {
              const page = store.list(key(step.prefix), step.page, cursor);
              listed.push(...page.keys.map(String));
              cursor = page.keys.at(-1);
              ({ more } = page);
            }
            expect(listed).toEqual(expected);
          } else if (step.do === "wait") clock.nowMs += step.ms;
          else if (step.do === "restart") {
            store.close();
            store = fresh();
          } else for (const { run } of clock.due.splice(0)) run();
          for (const name of model.keys()) {
            expect(store.get(key(name))?.value.toString()).toBe(
              alive(name) ? model.get(name)?.value : undefined,
            );
          }
        }
      }),
      { numRuns: 60 },
    );
  }, 60_000);

  it("applies a batch whole or not at all", async () => {
    await store.apply([put("a", "1")]);
    const broken: StoreWrite = {
      op: "set",
      key: key("c"),
      value: undefined as unknown as Buffer,
      expiresAtMs: null,
    };
    await expect(store.apply([put("a", "2"), put("b", "2"), broken])).rejects.toThrow();
    expect(store.get(key("a"))?.value.toString()).toBe("1");
    expect(store.get(key("b"))).toBeUndefined();
  });

  it("commits writes that come together in one group, and undoes the bad one alone", async () => {
    const broken: StoreWrite = {
      op: "set",
      key: key("c"),
      value: undefined as unknown as Buffer,
      expiresAtMs: null,
    };
    const outcomes = await Promise.allSettled([
      store.apply([put("a", "1")]),
      store.apply([broken]),
      store.apply([put("b", "2")]),
    ]);
    expect(outcomes.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(store.get(key("b"))?.value.toString()).toBe("2");
  });

  it("sweeps what has expired in the background", async () => {
    await store.apply([put("a", "1", clock.nowMs + 10), put("b", "2")]);
    clock.nowMs += 60_000;
    expect(clock.due).toHaveLength(1);
    clock.due.splice(0)[0]?.run();
    await store.apply([put("c", "3")]);
    store.close();
    const database = new DatabaseSync(path());
    expect(database.prepare("SELECT count(*) AS n FROM entries").get()).toMatchObject({ n: 2 });
    database.close();
  });

  it("plans the sweep of a store that it opened again", async () => {
    await store.apply([put("a", "1", clock.nowMs + 10)]);
    store.close();
    expect(clock.due).toHaveLength(0);
    store = fresh();
    store.get(key("a"));
    expect(clock.due).toHaveLength(1);
  });

  it("stays away from a disk that was let go, until it is there again", async () => {
    await store.apply([put("a", "1")]);
    store.close();
    expect(() => store.get(key("a"))).toThrow(expect.objectContaining({ code: "unavailable" }));
    await expect(store.apply([put("a", "2")])).rejects.toMatchObject({ code: "unavailable" });
    store.ready();
    expect(store.get(key("a"))?.value.toString()).toBe("1");
  });

  it("holds everything in the main file after a flush", async () => {
    await store.apply([put("a", "1")]);
    store.flush();
    expect(statSync(`${path()}-wal`).size).toBe(0);
  });

  it("says that a file is damaged and goes on when it is whole again", async () => {
    const damaged: [string, () => void][] = [
      [
        "no database",
        () =>
          writeFileSync(path(), "this is no database, and long enough to be looked at as one ".repeat(50)),
      ],
      ["a link elsewhere", () => symlinkSync("/etc/passwd", path())],
      ["a folder", () => mkdirSync(path())],
      [
        "someone's schema",
        () => {
          const database = new DatabaseSync(path());
          database.exec(
            "CREATE TABLE entries (key, value, expires_at_ms); CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END",
          );
          database.close();
        },
      ],
    ];
    for (const [, damage] of damaged) {
      store.close();
      store.ready();
      rmSync(path(), { recursive: true, force: true });
      rmSync(`${path()}-wal`, { force: true });
      damage();
      expect(() => store.get(key("a"))).toThrow(/damaged/);
      await expect(store.apply([put("a", "1")])).rejects.toThrow(/damaged/);
    }
    rmSync(path(), { recursive: true, force: true });
    await store.apply([put("a", "1")]);
    expect(store.get(key("a"))?.value.toString()).toBe("1");
  });

  it("survives random damage to its file without harm to the process", async () => {
    await store.apply(
      Array.from({ length: 300 }, (_, index) => put(`key-${index}`, JSON.stringify("x".repeat(index)))),
    );
    store.close();
    const whole = readFileSync(path());
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(whole.length - 1), fc.nat(255)), { minLength: 1, maxLength: 40 }),
        (changes) => {
          store.close();
          store.ready();
          const bytes = Buffer.from(whole);
          for (const [at, value] of changes) bytes[at] = value;
          writeFileSync(path(), bytes);
          rmSync(`${path()}-wal`, { force: true });
          for (const work of [() => store.get(key("key-7")), () => store.list(key(""), 1_000, undefined)]) {
            try {
              work();
            } catch (error) {
              expect(error).toMatchObject({ code: "internal" });
            }
          }
        },
      ),
      { numRuns: 100 },
    );
    appendFileSync(path(), "tail");
  });
});
