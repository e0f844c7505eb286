import { describe, expect, it } from "vitest";
import { absolutePath, shownPath } from "./path.ts";

describe("absolutePath", () => {
  it.each([
    ["/", "/"],
    ["//", "/"],
    ["/a//b/./c", "/a/b/c"],
    ["/a/../b", "/a/../b"],
    ["/a/", "/a/"],
    ["/a/.", "/a/"],
    ["/./", "/"],
    ["/...", "/..."],
    ["/a b\n", "/a b\n"],
  ])("takes %j", (path, cleaned) => {
    expect(absolutePath(path, "path")).toBe(cleaned);
    expect(shownPath(cleaned)).not.toMatch(/.\/$/);
  });

  it.each([undefined, "", "a", "./a", "~", "/a\0", `/${"x".repeat(4_095)}`])("refuses %j", (path) => {
    expect(() => absolutePath(path, "source")).toThrow(/^source /);
  });
});
