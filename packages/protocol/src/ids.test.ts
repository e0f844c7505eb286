import { describe, expect, it } from "vitest";
import { displayNamePattern, isDisplayName } from "./ids.ts";

describe("a display name", () => {
  it("is 1 to 64 printable characters of any script", () => {
    for (const name of ["a", "agent 7", "größe ☃ 名前", "x".repeat(64), "😀".repeat(64), "\u{e0100}"])
      expect(isDisplayName(name), name).toBe(true);
    for (const name of ["", "x".repeat(65), "😀".repeat(65)]) expect(isDisplayName(name), name).toBe(false);
  });

  it("holds nothing that cannot be seen", () => {
    const kinds = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/u;
    for (let point = 0; point <= 0x10_ffff; point += 1) {
      const name = String.fromCodePoint(point);
      if (kinds.test(name) && isDisplayName(name)) throw new Error(`U+${point.toString(16)} is a name`);
    }
    expect(isDisplayName("\ud800")).toBe(false);
    expect(isDisplayName("\ufffe")).toBe(false);
  });

  it("is told by a pattern without classes that only some languages have", () => {
    expect(displayNamePattern).not.toMatch(/\\[^u]|\\u\{/);
    expect(new RegExp(displayNamePattern, "u").test("")).toBe(true);
  });
});
