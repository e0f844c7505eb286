// SECURITY.md and docs/faults.md against the tests and the mutations that they rest on: every row names tests that exist, one of
// which is shown to fail without its defence, and every mutation still fits the code it is to change.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { defences } from "../mutation/defences.ts";
import { repositoryRoot } from "./source-tree.ts";

const read = (path: string): string => readFileSync(join(repositoryRoot, path), "utf8");

/** Rows whose defence is no single edit, with the reason. */
const notByOneEdit = new Map([
  [
    "A wildcard TLS key is never inside a guest",
    "no code carries it there; its test shows that it would find it",
  ],
  [
    "The service is killed at random for minutes under a mixed load",
    "the soak is the test of all the others",
  ],
  [
    "kill -9 of everything while the store is written",
    "SQLite's own log: without it the tests fail now and then",
  ],
]);

interface Row {
  name: string;
  tests: string[];
}

/** Each section that has a paragraph beginning with `label`; the tests are those that the paragraph names. */
function sections(markdown: string, label: string): Row[] {
  return markdown.split(/^#{2,3} /m).flatMap((section) => {
    const [name = ""] = section.split("\n", 1);
    const paragraph = section.split("\n\n").find((one) => one.trimStart().startsWith(`${label}: `));
    if (paragraph === undefined) return [];
    const tests = [...paragraph.matchAll(/`((?:tests|packages|spec)\/[^`]+)`/g)].map(
      ([, path]) => path ?? "",
    );
    return [{ name, tests }];
  });
}

const tables = [
  { file: "SECURITY.md", rows: sections(read("SECURITY.md"), "Attacked by") },
  { file: "docs/faults.md", rows: sections(read("docs/faults.md"), "Shown by") },
];
const mutated = new Set(defences.map((defence) => defence.test));

describe.each(tables)("$file", (table) => {
  test("has a section for each", () => {
    expect(table.rows.length).toBeGreaterThan(15);
  });

  test.each(table.rows.filter(({ name }) => !notByOneEdit.has(name)))("$name", ({ tests }) => {
    const files = tests.filter((path) => path.endsWith(".ts"));
    expect(files.filter((path) => !existsSync(join(repositoryRoot, path)))).toEqual([]);
    expect(
      files.filter((path) => mutated.has(path)),
      "a mutation of tests/mutation/defences.ts",
    ).not.toEqual([]);
  });
});

test.each(defences)("a mutation fits its file: $what", ({ file, find, test: named }) => {
  expect(read(file).split(find)).toHaveLength(2);
  expect(existsSync(join(repositoryRoot, named))).toBe(true);
});
