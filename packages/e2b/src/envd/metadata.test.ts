import { describe, expect, it } from "vitest";
import type { EntryInfo } from "@cloche/protocol";
import { attributesHeader, metadataIn, metadataOf } from "./metadata.ts";

const of = (...rawHeaders: string[]) => metadataOf({ rawHeaders });

describe("metadata of an upload", () => {
  it("is what X-Metadata says, by lower case, of a key that comes twice the first", () => {
    expect(
      of("X-Metadata-Author", "mish", "Host", "a", "x-metadata-author", "else", "x-metadata-b", ""),
    ).toEqual({
      author: "mish",
      b: "",
    });
    expect(of("Host", "a")).toEqual({});
    expect(Object.entries(of("x-metadata-__proto__", "a"))).toEqual([["__proto__", "a"]]);
  });

  it.each([
    ["a key that is empty", ["x-metadata-", "a"]],
    ["a key too long", [`x-metadata-${"k".repeat(247)}`, "a"]],
    ["a value that is no printable ASCII", ["x-metadata-key", "\u00e9"]],
  ])("refuses %s", (_what, headers) => {
    expect(() => of(...headers)).toThrow(/metadata/);
  });

  it("comes back from the attributes it goes into, which may be a program's as well", () => {
    const header = attributesHeader({ author: "mish", empty: "" })["x-file-attributes"] ?? "";
    const attributes = {
      ...(JSON.parse(header) as Record<string, string>),
      "user.other": "",
      "user.e2b.own": "w6k=",
    };
    expect(metadataIn({ attributes } as unknown as EntryInfo)).toEqual({
      author: "mish",
      empty: "",
      own: "\u00e9",
    });
    expect(attributesHeader({})).toEqual({});
    expect(metadataIn({ attributes: { "user.other": "" } } as unknown as EntryInfo)).toBeUndefined();
    expect(metadataIn({} as EntryInfo)).toBeUndefined();
  });
});
