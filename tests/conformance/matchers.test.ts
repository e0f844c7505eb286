import { describe, expect, test } from "vitest";
import { mismatches } from "./matchers.ts";

const now = () => 1_000_000_000;

describe("matchers", () => {
  test.each<[string, unknown, unknown]>([
    ["literals", "a", "a"],
    ["null", null, null],
    ["partial objects", { a: 1 }, { a: 1, b: 2 }],
    ["nested arrays", { a: [{ b: 1 }] }, { a: [{ b: 1, c: 2 }] }],
    ["types", { $type: "integer" }, 3],
    ["regular expressions", { $match: "^a+$" }, "aaa"],
    ["parts of text", { $includes: "b" }, "abc"],
    ["timestamps", { $timestamp: true }, "2026-01-02T03:04:05.678Z"],
    ["bounds together", { $min: 1, $max: 3 }, 3],
    ["alternatives", { $any_of: [1, { $type: "null" }] }, null],
    ["negation", { $not: "x" }, "y"],
    ["absent fields", { a: { $absent: true } }, {}],
    ["some elements", { $some: [{ a: 1 }, { a: 2 }] }, [{ a: 2 }, { a: 1 }, { a: 3 }]],
    ["every element", { $every: { $type: "string" } }, ["a", "b"]],
    ["lengths", { $length: { $min: 2 } }, "ab"],
    ["exact objects", { $exactly: { a: 1 } }, { a: 1 }],
    ["seconds from now", { $seconds_from_now: 60 }, 1_000_070],
  ])("accept %s", (_, expected, actual) => {
    expect(mismatches(expected, actual, "json", now)).toEqual([]);
  });

  test.each<[string, unknown, unknown]>([
    ["another literal", "a", "b"],
    ["a number for its text", 1, "1"],
    ["a missing field", { a: 1 }, {}],
    ["null for a missing field", { a: null }, {}],
    ["a longer array", [1], [1, 2]],
    ["an array for an object", { a: 1 }, [1]],
    ["a fraction for an integer", { $type: "integer" }, 3.5],
    ["text that does not match", { $match: "^a+$" }, "ab"],
    ["a timestamp without milliseconds", { $timestamp: true }, "2026-01-02T03:04:05Z"],
    ["an impossible date", { $timestamp: true }, "2026-13-02T03:04:05.000Z"],
    ["a number out of bounds", { $min: 1, $max: 3 }, 4],
    ["none of the alternatives", { $any_of: [1, 2] }, 3],
    ["what is excluded", { $not: { a: 1 } }, { a: 1 }],
    ["a field that should be absent", { a: { $absent: true } }, { a: null }],
    ["no such element", { $some: { a: 1 } }, [{ a: 2 }]],
    ["one element unlike the rest", { $every: 1 }, [1, 2]],
    ["another length", { $length: 2 }, [1]],
    ["an extra field", { $exactly: { a: 1 } }, { a: 1, b: 2 }],
    ["another time", { $seconds_from_now: 60 }, 1_000_000],
  ])("refuse %s", (_, expected, actual) => {
    expect(mismatches(expected, actual, "json", now)).not.toEqual([]);
  });

  test("say where and what", () => {
    expect(mismatches({ a: [{ b: 1 }] }, { a: [{ b: 2 }] })).toEqual(["json.a[0].b: expected 1, got 2"]);
  });

  test("refuse to guess an unknown matcher", () => {
    expect(() => mismatches({ $sorted: true }, [])).toThrow("$sorted is no matcher");
  });
});
