import { describe, expect, it } from "vitest";
import { chooseMirrors, parseAptSources } from "./debian-mirror.ts";

describe("apt sources", () => {
  it("reads the one-line format", () => {
    const text = [
      "# deb http://commented.example/debian bookworm main",
      "deb http://mirror.example/debian/ bookworm main contrib",
      "deb [arch=amd64 signed-by=/k.gpg] https://sec.example/debian-security bookworm-security main",
      "deb-src http://mirror.example/debian bookworm main",
      "deb cdrom:[Debian]/ bookworm main",
    ].join("\n");
    expect(parseAptSources(text)).toEqual([
      { uri: "http://mirror.example/debian", suite: "bookworm" },
      { uri: "https://sec.example/debian-security", suite: "bookworm-security" },
    ]);
  });

  it("reads deb822, with comments, folded fields and disabled stanzas", () => {
    const text = [
      "Types: deb deb-src",
      "# where it came from",
      "URIs: http://mirror.example/debian",
      "Suites: bookworm",
      "  bookworm-updates",
      "Components: main",
      "",
      "Types: deb",
      "URIs: http://off.example/debian",
      "Suites: bookworm",
      "Enabled: no",
      "",
      "Types: deb-src",
      "URIs: http://source.example/debian",
      "Suites: bookworm",
    ].join("\n");
    expect(parseAptSources(text)).toEqual([
      { uri: "http://mirror.example/debian", suite: "bookworm" },
      { uri: "http://mirror.example/debian", suite: "bookworm-updates" },
    ]);
  });

  it("falls back to the public mirrors on other releases", () => {
    expect(chooseMirrors([{ uri: "http://mirror.example/ubuntu", suite: "noble" }])).toEqual({
      main: "http://deb.debian.org/debian",
      security: "http://deb.debian.org/debian-security",
    });
    expect(chooseMirrors([{ uri: "http://mirror.example/debian", suite: "bookworm" }]).main).toBe(
      "http://mirror.example/debian",
    );
  });
});
