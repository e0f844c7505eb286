import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { JsonScanner } from "./json-scanner.ts";

const scan = (text: string): Buffer => {
  const scanner = new JsonScanner(Buffer.from(text));
  const value = scanner.value();
  scanner.end();
  return value;
};

describe("JsonScanner", () => {
  it("takes what JSON.parse takes, and refuses what it refuses", () => {
    const broken = fc.tuple(
      fc.json(),
      fc.nat(),
      fc.constantFrom("", "[", "}", ",", '"', "\\", "0", "-", ".", "e", "\n", "\u0001", "nul"),
    );
    fc.assert(
      fc.property(
        fc.oneof(
          fc.json().map((text): [string, number, string] => [text, -1, ""]),
          broken,
        ),
        ([text, at, put]) => {
          const where = at < 0 ? text.length : at % (text.length + 1);
          const mutated = at < 0 ? text : text.slice(0, where) + put + text.slice(where + 1);
          if (!mutated.isWellFormed()) return;
          let expected: unknown;
          let valid = true;
          try {
            expected = JSON.parse(mutated);
          } catch {
            valid = false;
          }
          if (valid) expect(JSON.parse(scan(mutated).toString("utf8"))).toEqual(expected);
          else expect(() => scan(mutated)).toThrow(/not valid JSON/);
        },
      ),
      { numRuns: 3_000 },
    );
  });

  it("keeps the text of a value but for white space between its parts", () => {
    expect(scan(' { "a" : [ 12345678901234567890 , 1.0e+5 , "b c \\" \\u0041" ] } ').toString()).toBe(
      '{"a":[12345678901234567890,1.0e+5,"b c \\" \\u0041"]}',
    );
  });

  it("does not recurse", () => {
    const depth = 1_000_000;
    expect(scan("[".repeat(depth) + "]".repeat(depth)).length).toBe(2 * depth);
  });

  it("refuses bytes that are no UTF-8", () => {
    expect(() => new JsonScanner(Buffer.from([0x22, 0xc3, 0x22]))).toThrow(/UTF-8/);
  });
});
