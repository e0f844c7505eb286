import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { KeyedLog } from "./keyed-log.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "cloche-keyed-log-"));
});
afterEach(() => {
  rmSync(dir, { recursive: true, force: true });
});
const opened = (path = join(dir, "log")): KeyedLog => {
  const log = new KeyedLog(path);
  log.open();
  return log;
};

test("holds what a map holds, also for whoever opens it after a crash", () => {
  const key = fc.constantFrom("a", "b", "c");
  const change = fc.oneof(
    fc.record({ set: key, text: fc.json() }),
    fc.record({ delete: key }),
    fc.constant({ crash: true }),
  );
  let run = 0;
  const holds = fc.property(fc.array(change, { maxLength: 30 }), (changes) => {
    const path = join(dir, String((run += 1)));
    const expected = new Map<string, string>();
    let log = opened(path);
    for (const one of changes) {
      if ("set" in one) {
        log.set(one.set, one.text);
        expected.set(one.set, one.text);
      } else if ("delete" in one) {
        log.delete(one.delete);
        expected.delete(one.delete);
      } else log = opened(path);
      expect(new Map(log.entries())).toEqual(expected);
    }
    expect(new Map(opened(path).entries())).toEqual(expected);
  });
  fc.assert(holds, { numRuns: 200 });
});

test("a line that a crash cut off counts as not written, wherever it was cut", () => {
  const path = join(dir, "log");
  const log = opened();
  log.set("kept", '{"n":1}');
  const whole = readFileSync(path).length;
  log.set("kept", '{"n":2}');
  const content = readFileSync(path);
  for (let bytes = whole; bytes < content.length; bytes += 1) {
    const cut = join(dir, `cut-${bytes}`);
    appendFileSync(cut, content.subarray(0, bytes));
    const after = opened(cut);
    expect(after.entries()).toEqual([["kept", '{"n":1}']]);
    after.set("other", "{}");
    expect(opened(cut).entries()).toEqual([
      ["kept", '{"n":1}'],
      ["other", "{}"],
    ]);
  }
});

test("nothing is written before it is open, or after it was closed", () => {
  const log = new KeyedLog(join(dir, "log"));
  expect(() => log.set("a", "{}")).toThrow("is not open");
  log.open();
  log.set("a", "{}");
  log.close();
  expect(() => log.set("a", "[]")).toThrow("is not open");
  expect(opened().entries()).toEqual([["a", "{}"]]);
});

test("does not grow with the number of changes, and goes when nothing is in it", () => {
  const path = join(dir, "log");
  const log = opened();
  const text = JSON.stringify("x".repeat(1_000));
  for (let i = 0; i < 5_000; i += 1) {
    log.set(`k${i % 3}`, text);
    log.delete(`k${(i + 1) % 3}`);
  }
  expect(statSync(path).size).toBeLessThan(300_000);
  for (const [key] of log.entries()) log.delete(key);
  log.close();
  expect(existsSync(path)).toBe(false);
});
