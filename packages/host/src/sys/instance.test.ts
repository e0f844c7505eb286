import { expect, it } from "vitest";
import { tagOfPath } from "./instance.ts";

it("makes a tag that is fit for names of interfaces, tables and namespaces", () => {
  expect(tagOfPath("/var/lib/cloche")).toMatch(/^[a-z0-9]{6}$/);
  expect(tagOfPath("/var/lib/cloche")).toBe(tagOfPath("/var/lib/cloche"));
  expect(tagOfPath("/var/lib/cloche2")).not.toBe(tagOfPath("/var/lib/cloche"));
});
