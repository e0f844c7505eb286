import { describe, expect, test } from "vitest";
import { partsTouchedBy } from "./changed.ts";
import { parts } from "./parts.ts";

const names = parts.filter(({ byNameOnly }) => !byNameOnly).map(({ name }) => name);
const touched = (...files: string[]): string[] => partsTouchedBy(files, names);

describe("the parts that changed files can break", () => {
  test("are none without a change", () => expect(touched()).toEqual([]));
  test("of a document: the checks and the unit tests", () =>
    expect(touched("docs/network.md")).toEqual(["check", "unit"]));
  test("of the tour: the test that types it, too", () =>
    expect(touched("docs/tour.md")).toContain("service"));
  test("of the edge: no host, no virtual machine", () =>
    expect(touched("packages/edge/src/edge.ts")).toEqual(
      names.filter((name) => !["contracts", "deploy", "guest", "host", "vm", "oci", "faults"].includes(name)),
    ));
  test("of a test: its part", () => expect(touched("tests/oci/pull.test.ts")).toEqual(["check", "oci"]));
  test.each(["package-lock.json", "tests/runner/parts.ts"])("of %s: all", (file) =>
    expect(touched(file)).toEqual(names),
  );
  test("of a file that no part names: all", () => expect(touched("somewhere/new.ts")).toEqual(names));
});
