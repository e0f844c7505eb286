import { expect, test } from "vitest";
import { changed } from "./runsc-changes.ts";

const change = { file: "a.go", before: "old\n", after: "new\n" };

test("changes exactly one place", () => {
  expect(changed(change, "first\nold\nlast\n")).toBe("first\nnew\nlast\n");
});

test.each(["first\nlast\n", "old\nold\n"])("refuses sources that read otherwise: %j", (text) => {
  expect(() => changed(change, text)).toThrow(/a\.go of gVisor is not as expected/);
});
