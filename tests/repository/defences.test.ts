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

/** The rows of the table whose head begins with `first`; its tests are in the column headed `column`. */
function rows(markdown: string, first: string, column: string): Row[] {
  const lines = markdown.split("\n").filter((line) => line.startsWith("|"));
  const head = lines.findIndex((line) => cellsOf(line)[0] === first);
  const at = cellsOf(lines[head] ?? "").indexOf(column);
  const body = lines.slice(head + 2);
  return body.map((line) => {
    const cells = cellsOf(line);
    const tests = [...(cells[at] ?? "").matchAll(/`((?:tests|packages|spec)\/[^`]+)`/g)].map(
      ([, path]) => path ?? "",
    );
    return { name: cells[0] ?? "", tests };
  });
}

const cellsOf = (line: string): string[] =>
  line
    .split("|")
    .slice(1, -1)
    .map((cell) => cell.trim());

const tables = [
  { file: "SECURITY.md", rows: rows(read("SECURITY.md"), "goal", "attacked by") },
  { file: "docs/faults.md", rows: rows(read("docs/faults.md"), "fault", "shown by") },
];
const mutated = new Set(defences.map((defence) => defence.test));

describe.each(tables)("$file", (table) => {
  test("has a table", () => {
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
