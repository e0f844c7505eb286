import { expect, it } from "vitest";
import { readRange } from "./send-file.ts";

it.each([
  [undefined, "whole"],
  ["bytes=0-0", { start: 0, end: 0 }],
  ["bytes=2-5", { start: 2, end: 5 }],
  ["bytes = 2 - 5", { start: 2, end: 5 }],
  ["bytes=2-", { start: 2, end: 9 }],
  ["bytes=2-99999999999999999999", { start: 2, end: 9 }],
  ["bytes=-3", { start: 7, end: 9 }],
  ["bytes=-99", { start: 0, end: 9 }],
  ["bytes=-0", "none"],
  ["bytes=10-", "none"],
  ["bytes=10-20", "none"],
  ["bytes=5-2", "whole"],
  ["bytes=-", "whole"],
  ["bytes=0-1,3-4", "whole"],
  ["bytes=a-b", "whole"],
  ["items=0-1", "whole"],
])("reads the range %s of ten bytes", (header, range) => {
  expect(readRange(header, 10)).toEqual(range);
});

it("finds nothing in an empty file", () => {
  expect(readRange("bytes=0-", 0)).toBe("none");
  expect(readRange("bytes=-1", 0)).toBe("none");
});
