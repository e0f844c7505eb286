import { expect, it } from "vitest";
import { traceparentOf } from "./trace-context.ts";

const traceId = "0af7651916cd43dd8448eb211c80319c";
const parentId = "b7ad6b7169203331";

it("keeps what is valid, a later version's longer form too", () => {
  for (const valid of [
    `00-${traceId}-${parentId}-01`,
    `00-${traceId}-${parentId}-00`,
    `cc-${traceId}-${parentId}-01-what-the-future-will-be`,
  ])
    expect(traceparentOf(valid)).toBe(valid);
});

it.each([
  ["nothing", undefined],
  ["two of them", [`00-${traceId}-${parentId}-01`, `00-${traceId}-${parentId}-01`]],
  ["an empty one", ""],
  ["a forbidden version", `ff-${traceId}-${parentId}-01`],
  ["version 00 with more", `00-${traceId}-${parentId}-01-more`],
  ["no trace id", `00-${"0".repeat(32)}-${parentId}-01`],
  ["no parent id", `00-${traceId}-${"0".repeat(16)}-01`],
  ["upper case", `00-${traceId.toUpperCase()}-${parentId}-01`],
  ["a line break", `00-${traceId}-${parentId}-01\r\nx: y`],
  ["something short", "00-1-2-3"],
  ["something long", `cc-${traceId}-${parentId}-01-${"x".repeat(5_000)}`],
])("drops %s", (_name, header) => {
  expect(traceparentOf(header)).toBe("");
});
