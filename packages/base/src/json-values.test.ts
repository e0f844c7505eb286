import { expect, test } from "vitest";
import { parseJson } from "./json-values.ts";

const parse = (text: string, most: number): unknown => parseJson(Buffer.from(text), most);

test.each([
  ["[1,2,3]", 4],
  ['{"a":"1,2,3,[{,,,"}', 3],
  [String.raw`["\",,,,,","\\",1]`, 5],
  ['"' + ",".repeat(100) + '"', 1],
])("%s is parsed with a bound of %i values", (text, most) => {
  expect(parse(text, most)).toEqual(JSON.parse(text));
});

test.each([
  ["[{},{},{},{}]", 5],
  [String.raw`["\\",1,2,3,4,5]`, 5],
  ["[".repeat(40), 39],
])("%s has too many values for a bound of %i", (text, most) => {
  expect(() => parse(text, most)).toThrow(/more than .* values/);
});

test("what is no JSON is a SyntaxError, an open text too", () => {
  expect(() => parse('["abc', 2)).toThrow(SyntaxError);
});

test("quotes and backslashes cost no more than other bytes", () => {
  const body = Buffer.from(`"${String.raw`\"`.repeat(1_000_000)}"`);
  const began = performance.now();
  parseJson(body, 10);
  expect(performance.now() - began).toBeLessThan(1_000);
});

test("a body of empty objects is refused in a fraction of the time that it takes to parse", () => {
  const body = Buffer.from(`[${"{},".repeat(1_300_000)}{}]`);
  const began = performance.now();
  expect(() => parseJson(body)).toThrow(/more than 50000 values/);
  expect(performance.now() - began).toBeLessThan(50);
});
