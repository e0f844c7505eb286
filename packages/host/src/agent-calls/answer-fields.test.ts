import { expect, it } from "vitest";
import { fieldsOf } from "./answer-fields.ts";

const zero = { count: 0, done: false, name: "", paths: [] as string[] };

it("takes the known fields, and those left out or null as in `zero`", () => {
  const paths = ["/a", "/b"];
  expect(fieldsOf({ count: 2, paths, name: null, further: {} }, zero)).toEqual({ ...zero, count: 2, paths });
});

it.each([
  { count: "2" },
  { count: -1 },
  { count: Number.POSITIVE_INFINITY },
  { count: {} },
  { done: "yes" },
  { done: 1 },
  { name: 7 },
  { name: "n".repeat(10_000) },
  { paths: "/a" },
  { paths: { length: 1 } },
  { paths: ["/a", 1] },
  { paths: [["/a"]] },
  { paths: ["p".repeat(10_000)] },
])("refuses %j", (answer) => {
  expect(fieldsOf(answer, zero)).toBeUndefined();
});

it.each([
  { runningServices: ["../../web"] },
  { runningServices: ["w".repeat(64)] },
  { runningServices: [7] },
  { runningServices: "web" },
  { runningServices: Array.from({ length: 9_900 }, (_, at) => `s${at}`) },
  { startedServices: [""] },
])("refuses services that no sandbox has: %j", (answer) => {
  const services = { runningServices: [] as string[], startedServices: [] as string[] };
  expect(fieldsOf({ runningServices: ["web"], ...answer }, services)).toBeUndefined();
  expect(fieldsOf({ runningServices: ["web"] }, services)?.runningServices).toEqual(["web"]);
});
